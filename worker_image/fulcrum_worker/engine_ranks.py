"""Ranks of one engine (data parallel): has vLLM end with the one that is lost, and refuse what ranks do not serve.

vLLM watches its ranks' processes and ends when one does (0.32.0). It names it nowhere, and waits for the others, which
hang in what they exchange with the lost one, as do their requests: for 6 to 17 s (measured).
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
from collections.abc import Iterable, Sequence
from multiprocessing import connection
from typing import Any, Final

from fulcrum.api.worker import EXIT_BAD_CONFIG

DENSE: Final = (
    "spec.pools[].parallelism.data: the model is dense (vLLM finds no experts in it), and ranks that step together "
    "only slow each other down there; set data to 1 and raise spec.pools[].workers"
)
NO_EXPERTS: Final = "spec.pools[].parallelism.experts: the model is dense (vLLM finds no experts in it); remove experts"
_REFUSED: Final = "fulcrum: refused: "
_LOST: Final = re.compile(r"fulcrum: rank (\d{1,5}) (was killed by \w{1,20}|ended with exit code \d{1,5})")
_PROCESS: Final = re.compile(r"EngineCore_DP(\d+)")
_REAPED_SECONDS: Final = 5.0
"""Most that passes between the end of a process's pipe, by which vLLM hears of it, and its exit code."""


def end_with_lost_rank() -> None:
    """Have this process say which of its engine's ranks ended, and end, and its children with it.

    Requests go on elsewhere once their connections break. Raises ImportError, AttributeError if vLLM differs.
    """
    manager: Any = importlib.import_module("vllm.v1.engine.utils").CoreEngineProcManager
    shutdown = manager.shutdown

    def end_or_shut_down(self: Any, *args: Any, **kwargs: Any) -> None:
        # What ends after the first call is ended by vLLM.
        lost = [] if self.manager_stopped.is_set() else lost_lines(exit_codes(self.processes))
        if lost:
            print(*lost, sep="\n", file=sys.stderr, flush=True)
            os._exit(1)
        shutdown(self, *args, **kwargs)

    manager.shutdown = end_or_shut_down


def exit_codes(processes: Sequence[Any]) -> list[tuple[str, int | None]]:
    """Return name and exit code of each process of `multiprocessing`; None: it lives.

    The kernel closes what a process had open before it has an exit code: one whose pipe has ended is waited for.
    """
    ended = connection.wait([of.sentinel for of in processes], timeout=0)
    for of in processes:
        if of.sentinel in ended:
            of.join(_REAPED_SECONDS)
    return [(of.name, of.exitcode) for of in processes]


def lost_lines(processes: Iterable[tuple[str, int | None]]) -> list[str]:
    """Return what is said of ranks that ended badly: names of their processes, and exit codes (None: they live).

    Those that were killed come first: the others end because they miss them.
    """
    return [
        f"fulcrum: rank {rank[1]} {how(code)}"
        for code, name in sorted((code, name) for name, code in processes if code)
        if (rank := _PROCESS.fullmatch(name)) is not None
    ]


def lost_rank(lines: Iterable[str]) -> str | None:
    """Return which rank ended first, as in "rank 1 was killed by SIGKILL", from an engine's lines; None: none did."""
    found = next((match for line in lines if (match := _LOST.fullmatch(line.strip())) is not None), None)
    return None if found is None else f"rank {found[1]} {found[2]}"


def refuse_dense_ranks() -> None:
    """End this process where its engine is to share the experts of a dense model, or has several ranks for it.

    Call it before vLLM's server makes its configuration. Raises ImportError, AttributeError if vLLM differs.
    """
    arguments: Any = importlib.import_module("vllm.engine.arg_utils").EngineArgs
    create = arguments.create_model_config

    def create_and_check(self: Any) -> Any:
        model = create(self)
        if (
            why := why_refused(self.data_parallel_size, experts=self.enable_expert_parallel, moe=model.is_moe)
        ) is not None:
            print(f"{_REFUSED}{why}", file=sys.stderr, flush=True)
            sys.exit(EXIT_BAD_CONFIG)
        return model

    arguments.create_model_config = create_and_check


def why_refused(ranks: int, *, experts: bool, moe: bool) -> str | None:
    """Return why a model, by its kind, is not served so; None: it is."""
    if moe or (ranks == 1 and not experts):
        return None
    return DENSE if ranks > 1 else NO_EXPERTS


def refusal(code: int, lines: Iterable[str]) -> str | None:
    """Return why an engine that ended with `code` refused its configuration, from its lines; None: it did not."""
    if code != EXIT_BAD_CONFIG:
        return None
    return next((line.removeprefix(_REFUSED) for line in lines if line.startswith(_REFUSED)), None)


def how(code: int) -> str:
    """An exit as words: -N is signal N."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
