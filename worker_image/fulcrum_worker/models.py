"""Where a model is: a path, a prepared model in the user's cache folder, or a hub id."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from fulcrum.capacity.config_fields import relevant

_MOST_FILES: Final = 10_000
"""Bounds one look at a model's files: large models have some hundred."""
_BLOCK_BYTES: Final = 512
"""Unit of `st_blocks`."""
_MOST_CONFIG_BYTES: Final = 1 << 20
"""Largest config.json that is read: of known models none has a tenth of it."""


def models_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Folder of prepared models: `$XDG_CACHE_HOME/fulcrum/models`, by default `~/.cache/fulcrum/models`."""
    environment = os.environ if environment is None else environment
    cache = environment.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "fulcrum" / "models"


def local_model(name: str, environment: Mapping[str, str] | None = None) -> Path | None:
    """The folder of the model on this machine, or None when `name` can only be a hub id."""
    for candidate in (Path(name).expanduser(), models_folder(environment) / name):
        if (candidate / "config.json").is_file():
            return candidate.resolve()
    return None


def downloaded_bytes(name: str, environment: Mapping[str, str]) -> int:
    """Bytes of a hub model that are on this machine's disk, unfinished files included; 0 where none are.

    Folders as the hub's library has them: `HF_HUB_CACHE`, else `hub` in `HF_HOME`.
    """
    total = 0
    with contextlib.suppress(OSError):
        for entry in islice(os.scandir(_hub_folder(name, environment) / "blobs"), _MOST_FILES):
            with contextlib.suppress(OSError):
                total += entry.stat().st_blocks * _BLOCK_BYTES  # files may be as long as they will be from the start
    return total


def model_config(name: str, revision: str | None, environment: Mapping[str, str]) -> dict[str, Any] | None:
    """What Fulcrum reads of the config.json of a model that an engine has loaded; None where it is not found."""
    local = local_model(name, environment)
    folder = local or _snapshot(_hub_folder(name, environment), revision or "main")
    try:
        with (folder / "config.json").open("rb") as file:
            document = msgspec.json.decode(file.read(_MOST_CONFIG_BYTES))
    except (OSError, msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return relevant(document) if isinstance(document, dict) else None


def _snapshot(folder: Path, revision: str) -> Path:
    """The files of a revision: a commit, or a branch or tag that stands for one."""
    with contextlib.suppress(OSError, UnicodeError):
        revision = (folder / "refs" / revision).read_text().strip() or revision
    return folder / "snapshots" / revision


def _hub_folder(name: str, environment: Mapping[str, str]) -> Path:
    cache = environment.get("HF_HUB_CACHE")
    home = environment.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    return (Path(cache) if cache else Path(home) / "hub") / f"models--{name.replace('/', '--')}"
