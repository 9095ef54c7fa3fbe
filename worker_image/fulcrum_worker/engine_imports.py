"""Makes an engine's start cheaper: most of it is imports, the same ones in each of vLLM's processes."""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Any, Final

SERVER_MODULE: Final = "vllm.entrypoints.launchers.api_server.app_state"
"""Brings nearly all that vLLM's API server imports (0.32.0). The server's own module is run as `__main__` later."""
ENGINE_MODULE: Final = "vllm.v1.engine.core"
"""Brings what vLLM's engine process imports before it has its configuration (0.32.0)."""


def import_without_collecting(module: str) -> None:
    """Import a module without garbage collections, and keep what it made out of later ones.

    Imports make a million objects and next to no garbage; looking for some takes a tenth and more of their time. A
    module that this vLLM does not have is left to vLLM.
    """
    gc.disable()
    try:
        importlib.import_module(module)
    except ImportError as error:
        print(f"{module} is not imported ahead: {error!r}", file=sys.stderr)
    finally:
        gc.freeze()
        gc.enable()


def is_on_cpu() -> bool:
    """Report whether vLLM computes on a CPU here."""
    return bool(importlib.import_module("vllm.platforms").current_platform.is_cpu())


def inspect_in_process() -> None:
    """On a CPU, have vLLM look at the model's class in this process.

    It starts a third process for that, which imports all of vLLM again, wherever its cache folder does not have the
    answer yet (0.32.0: `ModelRegistry`, 18 s of CPU). It does so to keep CUDA uninitialised, which a CPU has none of.
    """
    registry: Any = importlib.import_module("vllm.model_executor.models.registry")
    if hasattr(registry, "_run_in_subprocess"):
        registry._run_in_subprocess = lambda inspect: inspect()  # noqa: SLF001 - vLLM has no setting for it
    else:
        print("vLLM inspects models in another way: nothing is saved there", file=sys.stderr)
