"""Which Kubernetes a command talks to."""

from __future__ import annotations

import os

from fulcrum.kube import Api
from fulcrum.local.home import Home


def api_of(kubeconfig: str | None) -> Api:
    """Return the client of `kubeconfig`, else of `$KUBECONFIG`, of `fulcrum up`, or of kubectl's default."""
    named = kubeconfig or os.environ.get("KUBECONFIG")
    local = Home.find().kubeconfig
    if named is None and local.is_file():
        named = str(local)
    return Api(named)
