"""The API server and the cluster of the operator's tests, for commands that read a cluster."""

from __future__ import annotations

from tests.controller.conftest import api_server, cluster

__all__ = ["api_server", "cluster"]
