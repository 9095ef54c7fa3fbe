"""What the two distributions hold, and what `fulcrum` does where the local Kubernetes is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.machine import deadline_seconds

ROOT = Path(__file__).parents[1]
LOCAL = ROOT / "operator" / "fulcrum_local"
EXAMPLES = ROOT / "examples"
FIX = "pip install 'fulcrum-operator[local]'"
IMPORT_ALL = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"


def run(command: list[str | Path], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in `folder`, which is its home, too."""
    inherited = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    return subprocess.run(
        command, cwd=folder, env={"PATH": "/usr/bin:/bin", "HOME": str(folder), **inherited, **environment},
        capture_output=True, text=True, check=False, timeout=deadline_seconds(240),
    )  # fmt: skip


def built(project: Path, folder: Path) -> Path:
    """The wheel of a project, built with what is installed here."""
    pip = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-index", "--no-deps", "--no-build-isolation"]
    done = run([*pip, "--wheel-dir", folder, project], folder, FULCRUM_COMPILE="0")
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def installed(folder: Path, *wheels: Path) -> Path:
    """The folder of programs of an environment with these wheels and this one's packages, without editable ones."""
    venv.create(folder, with_pip=False, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    # A path in a .pth file is only put on sys.path: the .pth files there, which name the checkout, are not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", folder / "bin" / "python", "install"]
    # pip sees the editable ones, too; it must neither be content with them nor remove them.
    done = run([*pip, "--no-index", "--no-deps", "--ignore-installed", *wheels], folder)
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def modules(wheel: Path, package: str) -> list[str]:
    """The modules of a package in a wheel, but for programs that run when they are imported."""
    paths = [
        Path(name).with_suffix("") for name in files(wheel) if name.startswith(f"{package}/") and name.endswith(".py")
    ]
    return sorted(".".join(path.parts).removesuffix(".__init__") for path in paths if path.name != "__main__")


def project(folder: Path) -> dict[str, Any]:
    return dict(tomllib.loads((folder / "pyproject.toml").read_text())["project"])


@pytest.fixture(scope="module")
def fulcrum_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("fulcrum"))


@pytest.fixture(scope="module")
def local_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(LOCAL, tmp_path_factory.mktemp("local"))


@pytest.fixture(scope="module")
def fulcrum_alone(fulcrum_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("alone"), fulcrum_wheel)


@pytest.fixture(scope="module")
def both(fulcrum_wheel: Path, local_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("both"), fulcrum_wheel, local_wheel)


def test_both_have_one_version_and_ask_for_it() -> None:
    fulcrum, local = project(ROOT), project(LOCAL)
    assert fulcrum["version"] == local["version"]
    assert fulcrum["optional-dependencies"]["local"] == [f"{local['name']}=={local['version']}"]
    assert f"{fulcrum['name']}=={fulcrum['version']}" in local["dependencies"]
    assert f"'{fulcrum['name']}[local]'" in FIX


def test_the_wheel_of_fulcrum_has_nothing_of_the_local_kubernetes(fulcrum_wheel: Path) -> None:
    names = files(fulcrum_wheel)
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"fulcrum", "fulcrum_worker"}
    assert {name for name in names if Path(name).stem in ("apiserver", "kubelet")} == {
        "fulcrum/cli/apiserver.py", "fulcrum/cli/kubelet.py",
    }  # fmt: skip
    assert not any({"apiserver", "kubelet", "local"} & set(Path(name).parent.parts) for name in names)


def test_the_wheel_of_the_local_kubernetes_has_all_of_it_and_nothing_else(local_wheel: Path) -> None:
    sources = [*LOCAL.rglob("*.py"), *LOCAL.rglob("*.json"), LOCAL / "py.typed"]
    names = {name for name in files(local_wheel) if ".dist-info/" not in name}
    assert names == {path.relative_to(LOCAL.parent).as_posix() for path in sources}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in files(local_wheel))
    assert (LOCAL / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_fulcrum_alone_imports_all_of_its_modules(fulcrum_alone: Path, fulcrum_wheel: Path) -> None:
    found = modules(fulcrum_wheel, "fulcrum")
    done = run(
        [fulcrum_alone / "python", "-c", f"{IMPORT_ALL}; import fulcrum; print(fulcrum.__file__)", *found],
        fulcrum_alone,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(fulcrum_alone.parent)), "imported from the checkout instead"


@pytest.mark.parametrize(
    "arguments",
    [
        ["up"], ["down"], ["status"], ["kubeconfig"], ["logs", "pod"], ["kubelet"],
        ["apiserver", "--state-dir", "state"],
    ],
    ids=lambda arguments: arguments[0],
)  # fmt: skip
def test_commands_of_the_local_kubernetes_name_what_to_install(fulcrum_alone: Path, arguments: list[str]) -> None:
    done = run([fulcrum_alone / "fulcrum", *arguments], fulcrum_alone)
    assert done.returncode == 1
    assert done.stderr == f"Error: `fulcrum {arguments[0]}` needs the local Kubernetes, which is not installed: {FIX}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"], ["apiserver", "--help"], ["crd"],
        ["simulate", "--trace", "steps", "--cluster", f"{EXAMPLES}/simulate.yaml", "--limit", "50",
         "--policy", "static-1:2"],
        ["plan", "--model", "meta-llama/Llama-3.1-70B-Instruct", "--inventory", f"{EXAMPLES}/placement/inventory.yaml",
         "--workload", "swing", "--slo", "2s,50ms"],
    ],
    ids=lambda arguments: arguments[0],
)  # fmt: skip
def test_other_commands_run_without_it(fulcrum_alone: Path, arguments: list[str]) -> None:
    done = run([fulcrum_alone / "fulcrum", *arguments], fulcrum_alone)
    assert done.returncode == 0, done.stderr


def test_without_it_commands_on_clusters_take_what_kubectl_takes(fulcrum_alone: Path) -> None:
    done = run([fulcrum_alone / "fulcrum", "explain", "chat"], fulcrum_alone)
    assert done.returncode == 1
    assert "kubeconfig" in done.stderr
    assert FIX not in done.stderr


def test_both_together_import_all_of_the_local_kubernetes(both: Path, local_wheel: Path) -> None:
    program = f"{IMPORT_ALL}; from fulcrum_local.install import manifests; print(*manifests(), sep='\\n')"
    done = run([both / "python", "-c", program, *modules(local_wheel, "fulcrum_local")], both)
    assert done.returncode == 0, done.stderr
    assert all(line.startswith(str(both.parent)) for line in done.stdout.splitlines()), "those of the checkout"


def test_with_both_a_command_of_the_local_kubernetes_runs(both: Path) -> None:
    done = run([both / "fulcrum", "kubeconfig"], both)
    assert done.returncode == 1
    assert "there is no local Kubernetes in" in done.stderr
