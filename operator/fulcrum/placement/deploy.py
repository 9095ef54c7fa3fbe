"""The InferenceCluster that realises a plan, as the document that `kubectl apply` takes."""

from __future__ import annotations

from typing import Any, Final

from fulcrum.api.names import KIND, Role
from fulcrum.placement.parallelism import ROLES, Engine, Form
from fulcrum.placement.plan import PlacedPool, PlacementPlan

API_VERSION: Final = "fulcrum.dev/v1alpha1"


def inference_cluster(
    plan: PlacementPlan, *, name: str, engine: Engine, ttft: str, tpot: str, attainment: float
) -> dict[str, Any]:
    """Return the document. Workers of one form that prefill and decode are one pool, so that they can flip.

    Counts are fixed (min = max): the plan says what the inventory holds. Widen `max` where it may grow.
    """
    spec: dict[str, Any] = {
        "model": {"name": engine.model.name},
        "slo": {"ttft": ttft, "tpot": tpot, "attainment": attainment},
        "pools": _pools(plan),
        "engine": {
            "kvCache": {"dtype": engine.kv.value},
            "args": ["--max-num-seqs", str(engine.max_batch), *_quantization(engine)],
        },
        "balance": {"mode": "Auto"},
    }
    prefill, decode = plan.workers_of(Role.PREFILL), plan.workers_of(Role.DECODE)
    if prefill and decode:
        spec["balance"]["ratio"] = {"prefill": prefill, "decode": decode}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}


def _quantization(engine: Engine) -> list[str]:
    """Return the arguments that make the wanted weights of the checkpoint's: vLLM makes FP8 of 16 bits at its start."""
    return ["--quantization", "fp8"] if engine.weights not in (None, engine.model.weights) else []


def _pools(plan: PlacementPlan) -> list[dict[str, Any]]:
    merged: dict[str, list[PlacedPool]] = {}
    for pool in plan.pools:
        # `h100-tp2-prefill` and `h100-tp2-decode` are `h100-tp2`; `-2` behind it marks GPUs of another memory.
        name = pool.name.replace(f"-{pool.role.value}", "", 1)
        merged.setdefault(name, []).append(pool)
    prices = all(pool.option.kind.price_per_gpu_hour > 0 for pool in plan.pools)
    return [
        {
            "name": name,
            "accelerator": alike[0].option.kind.accelerator.name,
            "parallelism": _parallelism(alike[0].option.form),
            "workers": {"min": sum(pool.workers for pool in alike), "max": sum(pool.workers for pool in alike)},
            "roles": _roles({pool.role for pool in alike}),
        }
        | ({"pricePerHour": alike[0].option.kind.price_per_gpu_hour} if prices else {})
        for name, alike in merged.items()
    ]


def _parallelism(form: Form) -> dict[str, Any]:
    ranks = {"data": form.data, "experts": True} if form.data > 1 else {}
    return {"tensor": form.tensor, "pipeline": form.pipeline, **ranks}


def _roles(used: set[Role]) -> list[str]:
    """Return the roles in the CRD's terms: mixed beside one of the others asks for all three."""
    if Role.MIXED in used and len(used) > 1:
        used = set(ROLES)
    return [role.value for role in ROLES if role in used]
