"""Where a model is: a path, a prepared model in the user's cache folder, or a hub id."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Final

_MOST_FILES: Final = 10_000
"""Bounds one look at a model's files: large models have some hundred."""
_BLOCK_BYTES: Final = 512
"""Unit of `st_blocks`."""


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
    cache = environment.get("HF_HUB_CACHE")
    home = environment.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    folder = (Path(cache) if cache else Path(home) / "hub") / f"models--{name.replace('/', '--')}" / "blobs"
    total = 0
    with contextlib.suppress(OSError):
        for entry in islice(os.scandir(folder), _MOST_FILES):
            with contextlib.suppress(OSError):
                total += entry.stat().st_blocks * _BLOCK_BYTES  # files may be as long as they will be from the start
    return total
