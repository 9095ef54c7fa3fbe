"""Where a model is found, and `fulcrum model`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from fulcrum.cli.model import command
from fulcrum_worker.models import downloaded_bytes, local_model, model_config, models_folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "cache" / "fulcrum" / "models"


def make_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_what_has_been_downloaded(tmp_path: Path) -> None:
    """Counted in blocks on disk: a file that was made as long as it will be has none yet."""
    blobs = tmp_path / "hub" / "models--org--m" / "blobs"
    environment = {"HF_HOME": str(tmp_path)}
    assert downloaded_bytes("org/m", environment) == 0
    blobs.mkdir(parents=True)
    with (blobs / "sparse.incomplete").open("wb") as file:
        file.truncate(1 << 30)
    assert downloaded_bytes("org/m", environment) < 1 << 20
    (blobs / "part.incomplete").write_bytes(b"x" * (2 << 20))
    assert 2 << 20 <= downloaded_bytes("org/m", environment) < 4 << 20
    assert downloaded_bytes("org/m", {"HF_HUB_CACHE": str(tmp_path / "hub")}) >= 2 << 20
    assert downloaded_bytes("org/other", environment) == 0


def test_the_config_json_that_an_engine_has_loaded(tmp_path: Path) -> None:
    hub, commit = tmp_path / "hub" / "models--org--m", "0123abcd"
    environment = {"HF_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    assert model_config("org/m", None, environment) is None
    snapshot = make_model(hub / "snapshots" / commit)
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text(f"{commit}\n")
    (snapshot / "config.json").write_text('{"num_hidden_layers": 3, "architectures": ["X"]}')
    for revision in (None, "main", commit):
        assert model_config("org/m", revision, environment) == {"num_hidden_layers": 3}
    assert model_config("org/m", "other", environment) is None
    local = make_model(tmp_path / "mine")
    for text, expected in (('{"num_hidden_layers": 4}', {"num_hidden_layers": 4}), ("[1]", None), ("{", None)):
        (local / "config.json").write_text(text)
        assert model_config(str(local), None, environment) == expected


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert models_folder({}) == Path("/home/someone/.cache/fulcrum/models")


def test_a_path_then_the_cache_then_the_hub(cache: Path, tmp_path: Path) -> None:
    by_path, prepared = make_model(tmp_path / "mine"), make_model(cache / "small")
    (cache / "half").mkdir()
    assert local_model(str(by_path)) == by_path
    assert local_model("small") == prepared
    assert local_model("half") is None, "a folder without config.json is no model"
    assert local_model("org/model") is None


def test_a_prepared_model_is_printed_at_once(cache: Path) -> None:
    made = make_model(cache / "smollm2")
    result = CliRunner().invoke(command, ["smollm2"])
    assert (result.exit_code, result.stdout) == (0, f"{made}\n")


def test_a_local_folder_is_checked(cache: Path, tmp_path: Path) -> None:
    good = make_model(tmp_path / "good")
    assert CliRunner().invoke(command, [str(good)]).stdout == f"{good}\n"
    (tmp_path / "empty").mkdir()
    refused = CliRunner().invoke(command, [str(tmp_path / "empty")])
    assert refused.exit_code == 1
    assert "there is no config.json in it" in refused.output


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nothing-here", "there is no such folder"),
        ("~/nothing-here", "there is no such folder"),
        ("a b/c", "it is no hub id"),
        ("org/model", "fulcrum model smollm2` needs no network"),
    ],
)
def test_a_name_that_leads_nowhere(cache: Path, name: str, message: str) -> None:
    result = CliRunner().invoke(command, [name])
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())


def test_list_and_no_name(cache: Path) -> None:
    make_model(cache / "mine")
    assert CliRunner().invoke(command, ["--list"]).stdout == (
        f"mine\t{cache / 'mine'}\nsmollm2\tnot prepared\ntiny\tnot prepared\n"
    )
    assert CliRunner().invoke(command, []).exit_code == 2
    assert "Examples:" in CliRunner().invoke(command, ["--help"]).output
