"""`fulcrum plan` for mixtures of experts beside NVIDIA's AIConfigurator: both choices, and each by both models.

    python benchmarks/plan_groups.py [--only NAME] [--backend vllm] [--environment FOLDER]

AIConfigurator predicts steady batches without queues. Fulcrum's requests/s are those at which 95 % of requests that
come at random are inside both promises. AIConfigurator has an environment of its own: --environment, or
`build/aiconfigurator` out of `requirements/aiconfigurator.lock`. Exits with 1 where `plan` takes more than 10 s.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from fulcrum.api.names import Role
from fulcrum.capacity.accelerators import accelerator
from fulcrum.capacity.engine import EngineShape
from fulcrum.capacity.known_models import known_model
from fulcrum.capacity.roofline import Roofline, shape_speed
from fulcrum.load.demand import Demand, LatencyTargets
from fulcrum.placement.estimates import FluidEstimates
from fulcrum.placement.inventory import inventory_from
from fulcrum.placement.parallelism import Engine
from fulcrum.placement.performance import Stations, goodput
from fulcrum.placement.plan import PlacementPlan
from fulcrum.placement.search import Request, search

ROOT: Final = Path(__file__).resolve().parents[1]
MOST_SECONDS: Final = 10.0
"""Seconds that a plan may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question to both."""

    name: str
    model: str
    gpu: str
    system: str
    """AIConfigurator's name of the GPU."""
    gpus: int
    isl: int
    osl: int
    ttft_seconds: float
    tpot_seconds: float


DEEPSEEK: Final = {
    "model": "deepseek-ai/DeepSeek-V3",
    "gpu": "H200-SXM-141GB",
    "system": "h200_sxm",
    "isl": 4000,
    "osl": 1000,
    "ttft_seconds": 5.0,
    "tpot_seconds": 0.05,
}
CASES: Final = (
    Case(name="deepseek-32", gpus=32, **DEEPSEEK),  # type: ignore[arg-type]
    Case(name="deepseek-16", gpus=16, **DEEPSEEK),  # type: ignore[arg-type]
    Case(
        name="qwen3-8",
        model="Qwen/Qwen3-235B-A22B",
        gpu="H100-SXM-80GB",
        system="h100_sxm",
        gpus=8,
        isl=4000,
        osl=500,
        ttft_seconds=2.0,
        tpot_seconds=0.03,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Alike workers of one role."""

    role: str
    workers: int
    tensor: int
    data: int
    experts: bool
    """Whole experts on each GPU; else a part of every expert."""

    def __str__(self) -> str:
        """Return it in a few letters: 2 x DP8 EP prefill."""
        form = "x".join(f"{name}{size}" for name, size in (("TP", self.tensor), ("DP", self.data)) if size > 1)
        return f"{self.workers} x {form or 'TP1'}{' EP' if self.experts else ''} {self.role}"


def groups_of(plan: PlacementPlan) -> list[Group]:
    """Return the pools of a plan of ours."""
    return [
        Group(
            role=pool.role.value,
            workers=pool.workers,
            tensor=pool.option.tensor,
            data=pool.option.data,
            experts=pool.option.data > 1,
        )
        for pool in sorted(plan.pools, key=lambda each: each.role is not Role.PREFILL)
    ]


def groups_from(row: dict[str, Any], gpus: int) -> list[Group]:
    """Return the workers of AIConfigurator's best row, its replicas added up over the GPUs."""
    replicas = gpus // int(row["num_total_gpus"])
    roles = (("(p)", "prefill"), ("(d)", "decode")) if row["mode"] == "disagg" else (("", "mixed"),)
    return [
        Group(
            role=role,
            workers=replicas * int(row.get(f"{side}workers", 1)),
            tensor=int(row[f"{side}tp"]),
            data=int(row[f"{side}dp"]),
            experts=int(row[f"{side}moe_ep"]) > 1,
        )
        for side, role in roles
    ]


def rate_from(row: dict[str, Any], gpus: int) -> float:
    """Return the requests/s that AIConfigurator predicts for all replicas of its best row."""
    return float(row["seq/s"]) * (gpus // int(row["num_total_gpus"]))


def shape_of(case: Case, group: Group) -> EngineShape:
    """Return one worker as our capacity model sees it."""
    model = known_model(case.model)
    return EngineShape(
        model=model,
        accelerator=accelerator(case.gpu),
        tensor=group.tensor,
        data=group.data,
        experts=group.experts,
        weights=model.weights,
        max_batch=Engine(model=model).max_batch,
    )


def estimates_of(case: Case) -> FluidEstimates:
    """Return our estimates for the requests and promises of a case."""
    return FluidEstimates(
        Demand(rate=0.0, isl_tokens=float(case.isl), osl_tokens=float(case.osl), isl_cv2=0.0, osl_cv2=0.0),
        LatencyTargets(ttft_seconds=case.ttft_seconds, tpot_seconds=case.tpot_seconds, attainment=0.95),
        turns_away=True,
    )


def rate_by_ours(case: Case, groups: Sequence[Group]) -> float:
    """Return the requests/s that our model predicts for a layout."""
    stations: dict[str, Stations] = {
        group.role: [(shape_speed(shape_of(case, group)), group.workers)] for group in groups
    }
    return goodput(estimates_of(case), **stations)


def planned(case: Case) -> tuple[PlacementPlan, float]:
    """Return our plan and the seconds that its search took."""
    nodes = {"accelerator": case.gpu, "gpus": 8, "count": case.gpus // 8, "network": 3200}
    estimates = estimates_of(case)
    began = time.perf_counter()
    plan = search(
        Request(
            inventory=inventory_from({"nodes": [nodes]}),
            engine=Engine(model=known_model(case.model)),
            performance=estimates,
            prompt_tokens=estimates.demand.isl_tokens,
        )
    )
    return plan, time.perf_counter() - began


def environment(given: Path | None) -> Path:
    """Return the Python of a given environment, or of `build/aiconfigurator`, which is made."""
    if given is None:
        settings = {**os.environ, "VENV": "build", "PYTHON": sys.executable}
        subprocess.run(["sh", "requirements/tool.sh", "aiconfigurator"], cwd=ROOT, env=settings, check=True)
        given = ROOT / "build" / "aiconfigurator"
    return given / "bin" / "python"


def asked(python: Path, case: Case, backend: str, layout: Sequence[Group]) -> dict[str, Any]:
    """Return AIConfigurator's choice, and what it predicts for `layout`."""
    question = {
        "model": case.model,
        "system": case.system,
        "gpus": case.gpus,
        "backend": backend,
        "isl": case.isl,
        "osl": case.osl,
        "ttft_ms": case.ttft_seconds * 1e3,
        "tpot_ms": case.tpot_seconds * 1e3,
        "layout": [asdict(group) for group in layout],
    }
    done = subprocess.run(
        [python, "-P", Path(__file__).with_name("aiconfigurator_run.py")],
        input=json.dumps(question).encode(),
        capture_output=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"aiconfigurator ended with {done.returncode}:\n{done.stderr.decode()[-3000:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def show(case: Case, python: Path, backend: str) -> bool:
    """Print one case; whether the plan was quick enough."""
    plan, seconds = planned(case)
    ours = groups_of(plan)
    answer = asked(python, case, backend, ours)
    row = answer["chosen"]
    theirs = groups_from(row, case.gpus)
    version = row.get("version") or row.get("(d)version")
    print(
        f"\n{case.name}: {case.model} on {case.gpus} {case.gpu}, {case.isl}:{case.osl}, {case.ttft_seconds:g} s / "
        f"{case.tpot_seconds * 1e3:g} ms; tables of {backend} {version}; plan took {seconds:.1f} s"
    )
    print(f"  {'':15} {'layout':44} {'by ours':>8} {'by AIConfigurator':>18}   requests/s")
    for name, groups, theirs_says in (
        ("plan", ours, answer["ours"]["rate"]),
        ("AIConfigurator", theirs, rate_from(row, case.gpus)),
    ):
        print(f"  {name:15} {' + '.join(map(str, groups)):44} {rate_by_ours(case, groups):8.2f} {theirs_says:18.2f}")
    batch, context = int(row.get("(d)bs") or row["bs"]), case.isl + case.osl / 2
    shape = shape_of(case, theirs[-1])
    # A batch is that of one rank in both tools.
    step = Roofline(shape=shape).decode_step_seconds(batch, batch * context)
    print(f"  step of its decode group, {batch} a rank: {step * 1e3:.1f} ms by ours; its TPOT is {row['tpot']:.1f} ms")
    return seconds <= MOST_SECONDS


def main() -> int:
    """Print all cases; 0 when every plan was quick enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[case.name for case in CASES], help="one of the cases")
    parser.add_argument("--backend", default="vllm", choices=("vllm", "trtllm", "sglang"), help="whose tables it reads")
    parser.add_argument("--environment", type=Path, help="a virtual environment that has AIConfigurator")
    arguments = parser.parse_args()
    python = environment(arguments.environment)
    quick = [show(case, python, arguments.backend) for case in CASES if arguments.only in (None, case.name)]
    return 0 if all(quick) else 1


if __name__ == "__main__":
    sys.exit(main())
