"""`python -m fulcrum_worker.preload MODEL`: put a model's weights where the workers' engines look for them.

It may be killed at any instant and run again: what is complete is not downloaded anew, and the rest is continued.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fulcrum_worker.models import downloaded_bytes, local_model

_FORMATS: Final = ("consolidated*.safetensors", "*.safetensors", "*.bin", "*.pt")
"""Files of weights, in the order in which vLLM looks for them: it loads those of the first kind that is there."""
_NOT_LOADED: Final = (*_FORMATS, "*.gguf", "*.h5", "*.msgpack", "*.onnx", "*.pth", "*.ckpt", "original/*")
"""What is not downloaded beside that."""
_TOLD_SECONDS: Final = 10.0
"""Between two lines about the progress."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 once the weights are there, 1 where they cannot be had; the last line says why."""
    parser = argparse.ArgumentParser(prog="python -m fulcrum_worker.preload")
    parser.add_argument("model")
    parser.add_argument("--revision")
    asked = parser.parse_args(arguments)
    # The first process of a container is not ended by a signal that it does not handle. Threads of a download go on
    # for minutes when asked to end; unfinished files are continued by the next run.
    signal.signal(signal.SIGTERM, lambda number, _frame: os._exit(128 + number))
    if (folder := local_model(asked.model)) is not None:
        print(f"{asked.model} is there: {folder}")
        return 0
    if asked.model.startswith(("/", ".")):
        print(f"{asked.model} has no config.json: put the model there, or name a hub id in model.name", file=sys.stderr)
        return 1
    try:
        print(f"{asked.model} is there: {_download(asked.model, asked.revision)}")
    except (OSError, ValueError) as error:  # of the hub's library all are one of them
        cause = error.__cause__ or error
        said = " ".join(str(cause).split())
        print(f"{asked.model} cannot be downloaded: {type(cause).__name__}: {said}", file=sys.stderr)
        return 1
    return 0


def _download(model: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    files = snapshot_download(model, revision=revision, dry_run=True)
    ignored = _ignored([file.filename for file in files])
    wanted = snapshot_download(model, revision=revision, dry_run=True, ignore_patterns=ignored)
    total_bytes = sum(file.file_size or 0 for file in wanted)
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(_TOLD_SECONDS):
            print(f"{model}: {downloaded_bytes(model, os.environ) / 1e9:.1f} of {total_bytes / 1e9:.1f} GB", flush=True)

    threading.Thread(target=tell, name="progress", daemon=True).start()
    try:
        return Path(snapshot_download(model, revision=revision, ignore_patterns=ignored))
    finally:
        ended.set()


def _ignored(names: Sequence[str]) -> list[str]:
    """Return the patterns of files that are not loaded: weights in other formats, and originals of converted ones."""
    from fnmatch import filter as matching

    top = [name for name in names if "/" not in name]
    loaded = next((pattern for pattern in _FORMATS if matching(top, pattern)), None)
    if loaded is None:
        return []  # kept in folders, as no format that is known: all of it
    # A pattern would match what is loaded, too: `*.safetensors` has the files that begin with `consolidated`.
    return sorted({name for each in _NOT_LOADED for name in matching(names, each)} - set(matching(top, loaded)))


if __name__ == "__main__":
    sys.exit(main())
