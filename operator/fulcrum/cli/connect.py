"""Which Kubernetes a command talks to."""

from __future__ import annotations

import os
from importlib.util import find_spec

from fulcrum.kube import Api


def api_of(kubeconfig: str | None) -> Api:
    """Return the client of `kubeconfig`, else of `$KUBECONFIG`, of `fulcrum up`, or of kubectl's default."""
    named = kubeconfig or os.environ.get("KUBECONFIG")
    return Api(_of_local_kubernetes() if named is None else named)


def _of_local_kubernetes() -> str | None:
    """The kubeconfig of `fulcrum up`, where that is installed and has run."""
    if find_spec("fulcrum_local") is None:
        return None
    from fulcrum_local.home import Home

    file = Home.find().kubeconfig
    return str(file) if file.is_file() else None
