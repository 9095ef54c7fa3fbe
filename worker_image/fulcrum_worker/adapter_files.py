"""The files of LoRA adapters on this machine: where they are, and whether an engine can take them."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from fulcrum.api.worker import AdapterSource

_CONFIG: Final = "adapter_config.json"
_WEIGHTS: Final = "adapter_model.safetensors"
_MOST_CONFIG_BYTES: Final = 1 << 20
"""Largest adapter_config.json that is read: PEFT writes 1 KiB."""
_DOWNLOAD_SECONDS: Final = 600.0
"""Longest download. Adapters have some hundred megabytes; one that takes longer is tried again later, and goes on."""
_SHOWN: Final = 300
"""Most characters of what a download says of its failure."""
_NOT_ON_HUB: Final = 3
"""Exit code of a download that the hub itself refused: it has no such id or revision, or not for these credentials."""
_DOWNLOAD: Final = f"""
import sys
from huggingface_hub import snapshot_download
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError
try:
    print(snapshot_download(sys.argv[1], revision=sys.argv[2] or None, allow_patterns=[{_CONFIG!r}, {_WEIGHTS!r}]))
except (RepositoryNotFoundError, RevisionNotFoundError) as error:
    print(" ".join(str(error).split()), file=sys.stderr)
    sys.exit({_NOT_ON_HUB})
"""
"""A process of its own: it can be ended, and blocks nothing."""


class AdapterError(Exception):
    """An adapter cannot be loaded; the message says why, and what to do."""

    def __init__(self, message: str, *, lasting: bool = True) -> None:
        """`lasting`: the next attempt fails, too, unless someone changes something."""
        super().__init__(message)
        self.lasting = lasting


async def adapter_folder(adapter: AdapterSource) -> Path:
    """Return the adapter's folder; one of the hub is downloaded. Raises AdapterError."""
    if adapter.source.startswith("/"):
        return Path(adapter.source)
    # -I: nothing of the working directory is imported.
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", _DOWNLOAD, adapter.source, adapter.revision or "",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "DO_NOT_TRACK": "1"},
    )  # fmt: skip
    try:
        async with asyncio.timeout(_DOWNLOAD_SECONDS):
            output, errors = await process.communicate()
    except TimeoutError:
        raise AdapterError(
            f"the download of {adapter.source} took longer than {_DOWNLOAD_SECONDS:g} s: it is tried again; a claim in "
            "model.cache keeps what came",
            lasting=False,
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = (errors.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
        raise AdapterError(
            f"{adapter.source} could not be downloaded ({last[:_SHOWN]}): check source and revision, "
            "model.credentials, and that workers reach the hub",
            lasting=process.returncode == _NOT_ON_HUB,
        )
    return Path(output.decode().strip().splitlines()[-1])


def check_files(adapter: AdapterSource, folder: Path, *, max_rank: int) -> None:
    """Check what vLLM would say less clearly, or not at all. Raises AdapterError."""
    for name in (_CONFIG, _WEIGHTS):
        if not (folder / name).is_file():
            raise AdapterError(
                f"{folder / name} is not there: put the adapter as PEFT saves it (safetensors) where source says, "
                "on every worker"
            )
    try:
        with (folder / _CONFIG).open("rb") as file:
            document = msgspec.json.decode(file.read(_MOST_CONFIG_BYTES))
    except (OSError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise AdapterError(f"{folder / _CONFIG} cannot be read ({error}): save the adapter anew") from None
    rank = document.get("r") if isinstance(document, dict) else None
    if not isinstance(rank, int):
        raise AdapterError(f"{folder / _CONFIG} has no rank `r`: it is not the configuration of a LoRA adapter")
    if rank > max_rank:
        raise AdapterError(
            f"its rank is {rank}, above spec.adapters.maxRank ({max_rank}): raise maxRank, which replaces the workers, "
            "or train a smaller adapter"
        )
    if adapter.rank is not None and rank != adapter.rank:
        raise AdapterError(
            f"its rank is {rank}, and spec.adapters.list[].rank says {adapter.rank}: correct rank, or source"
        )
