"""What tests want to know of the installed vLLM's classes: `python rank_program.py EXPERTS DENSE COMMANDS`.

Arguments are two models and a JSON list of command lines. Prints one line of JSON, and then loses a rank.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import threading
import time
import weakref
from typing import Any

from fulcrum_worker.engine_experts import share_experts_on_cpu
from fulcrum_worker.engine_ranks import end_with_lost_rank, exit_codes, refuse_dense_ranks
from fulcrum_worker.parent_death import end_with_parent


def mapped() -> object:
    """Ids and weights that the experts of a rank with experts 2 and 3 of four are given."""
    import torch
    from vllm.model_executor.layers.fused_moe.experts import cpu_moe

    given: dict[str, Any] = {}
    cpu_moe.CPUUnquantizedExperts.apply = lambda _self, **of: given.update(of)  # type: ignore[method-assign,assignment]
    share_experts_on_cpu()
    experts: Any = object.__new__(cpu_moe.CPUUnquantizedExperts)
    ids = torch.tensor([[0, 3], [2, 1]], dtype=torch.int32)
    weights = torch.tensor([[0.25, 0.75], [0.5, 0.125]])
    found = []
    for expert_map in (torch.tensor([-1, -1, 0, 1], dtype=torch.int32), None):
        experts.apply(topk_ids=ids, topk_weights=weights, expert_map=expert_map)
        found.append([given["topk_ids"].tolist(), given["topk_weights"].tolist(), str(given["topk_ids"].dtype)])
    return found


def gathered() -> object:
    """Tokens of two ranks with 3 and 1 of them, gathered and summed by vLLM's communicator for CPUs."""
    import torch
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    sizes = [3, 1]
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        rank = 0 if child else 1
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
        ranks: Any = object.__new__(CpuCommunicator)
        ranks.world_size, ranks.rank_in_group, ranks.device_group = 2, rank, None
        ranks.dist_module = torch.distributed
        own = torch.arange(sizes[rank] * 2, dtype=torch.float32).reshape(-1, 2) + 100 * rank
        both, ids = ranks.all_gatherv([own, torch.full((sizes[rank], 1), rank)], 0, sizes)
        summed = ranks.reduce_scatterv(both * (rank + 1), 0, sizes)
        if not child:
            os._exit(0 if summed.tolist() == [[300.0, 303.0]] else 1)
        _, status = os.waitpid(child, 0)
    return {"both": both.tolist(), "ids": ids.flatten().tolist(), "summed": summed.tolist(), "other": status}


def parsed(commands: str) -> object:
    """Each of the commands (JSON) that vLLM's own parser refuses, and its list of backends."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    refused = []
    for number, command in enumerate(json.loads(commands)):
        try:
            with contextlib.redirect_stderr(None):
                parser.parse_args(command)
        except (SystemExit, argparse.ArgumentError):
            refused.append(number)
    (backends,) = (action.choices for action in parser._actions if "--all2all-backend" in action.option_strings)
    return {"refused": refused, "backends": sorted(backends)}


def code_of(model: str) -> object:
    """Exit code of a configuration with two ranks; 0: it may be."""
    from vllm.engine.arg_utils import EngineArgs

    try:
        arguments = EngineArgs(
            model=model, data_parallel_size=2, enable_expert_parallel=True, max_model_len=1024, enforce_eager=True
        )
        arguments.create_engine_config()
    except SystemExit as ended:
        return ended.code
    return 0


def watched() -> Any:
    """vLLM's watch over two ranks."""
    from vllm.v1.engine.utils import CoreEngineProcManager, shutdown

    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=_rank, args=(os.getpid(),), name=f"EngineCore_DP{rank}") for rank in range(2)]
    for rank in ranks:
        rank.start()
    watch: Any = object.__new__(CoreEngineProcManager)
    watch.processes, watch.manager_stopped, watch.failed_proc_name = ranks, threading.Event(), None
    watch._request_shutdown_timeout = 0
    watch._finalizer = weakref.finalize(watch, shutdown, ranks)
    return watch


def _rank(parent: int) -> None:
    end_with_parent(parent)
    time.sleep(600)


def late() -> object:
    """Exit codes of a process whose pipe has ended and that is not gone yet, and of one that lives."""
    fork = multiprocessing.get_context("fork")
    dying = fork.Process(target=_die_slowly, name="EngineCore_DP7")
    living = fork.Process(target=_rank, args=(os.getpid(),), name="EngineCore_DP8")
    dying.start()
    living.start()
    multiprocessing.connection.wait([dying.sentinel])
    before = dying.exitcode
    found = exit_codes([dying, living])
    living.kill()
    return {"before": before, "found": found}


def _die_slowly() -> None:
    os.closerange(3, 4096)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def main(experts_model: str, dense_model: str, commands: str) -> None:
    """Look at all of it."""
    refuse_dense_ranks()
    end_with_lost_rank()
    found = {"mapped": mapped(), "gathered": gathered(), "parsed": parsed(commands)}
    found["late"] = late()
    found["codes"] = [code_of(model) for model in (experts_model, dense_model)]
    watch = watched()
    print(json.dumps({**found, "ranks": [rank.pid for rank in watch.processes]}), flush=True)
    os.kill(watch.processes[1].pid, signal.SIGKILL)
    watch.monitor_engine_liveness()


if __name__ == "__main__":
    main(*sys.argv[1:])
