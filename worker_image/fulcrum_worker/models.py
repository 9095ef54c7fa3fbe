"""Where a model is: a path, a prepared model in the user's cache folder, or a hub id."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


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
