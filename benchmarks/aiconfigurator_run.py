"""One question to NVIDIA's AIConfigurator, and what it predicts for a given layout. `plan_groups.py` starts this.

It runs in an environment that has AIConfigurator and not Fulcrum. The question comes on standard input, the answer goes
to standard output, both as JSON.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from typing import Any

MOST_BATCH = 1024
"""Requests per rank that are tried at most: `max_num_seqs` of Fulcrum's plans."""


def main() -> None:
    """Answer the question."""
    question = json.load(sys.stdin)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    # AIConfigurator prints to standard output, too: only the answer may go there.
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        json.dump({"chosen": chosen(question), "ours": predicted(question)}, answer)


def chosen(question: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of its best configuration, by its own column names."""
    from aiconfigurator.cli.api import cli_default

    found = cli_default(
        question["model"],
        question["gpus"],
        question["system"],
        backend=question["backend"],
        isl=question["isl"],
        osl=question["osl"],
        ttft=question["ttft_ms"],
        tpot=question["tpot_ms"],
    )
    row = found.best_configs[found.chosen_exp].iloc[0].to_dict()
    plain = {name: each for name, each in row.items() if isinstance(each, int | float | str)}
    return {"mode": found.chosen_exp, **plain}


def predicted(question: dict[str, Any]) -> dict[str, Any]:
    """Return what it predicts for the layout of the question, at the largest batch that keeps both promises."""
    low, high, best = 1, MOST_BATCH, {"batch": 0, "rate": 0.0}
    while low <= high:
        batch = (low + high) // 2
        found = estimate(question, batch)
        if found is not None and found.tpot <= question["tpot_ms"] and found.ttft <= question["ttft_ms"]:
            best = {"batch": batch, "rate": found.seq_per_second}
            low = batch + 1
        else:
            high = batch - 1
    return best


def estimate(question: dict[str, Any], batch: int) -> Any:
    """Return its estimate with `batch` requests on each rank that decodes; None where they do not fit."""
    from aiconfigurator.cli.api import cli_estimate

    arguments: dict[str, Any] = {}
    for group in question["layout"]:
        gpus = group["tensor"] * group["data"]
        prefix = {"prefill": "prefill_", "decode": "decode_", "mixed": ""}[group["role"]]
        sizes = {
            "tp_size": group["tensor"],
            "attention_dp_size": group["data"],
            "moe_tp_size": 1 if group["experts"] else gpus,
            "moe_ep_size": gpus if group["experts"] else 1,
            "batch_size": 1 if group["role"] == "prefill" else batch,
        }
        arguments |= {prefix + name: each for name, each in sizes.items()}
        if prefix:
            arguments |= {prefix + "num_workers": group["workers"], prefix + "pp_size": 1}
    try:
        return cli_estimate(
            question["model"],
            question["system"],
            mode="disagg" if len(question["layout"]) > 1 else "agg",
            backend_name=question["backend"],
            isl=question["isl"],
            osl=question["osl"],
            **arguments,
        )
    except RuntimeError:
        return None


if __name__ == "__main__":
    main()
