"""A server that stays silent has not answered in time, whichever of the deadlines passes first."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest
from tests.telemetry.test_hostile_upstreams import CLUSTER

from fulcrum.telemetry.prometheus_access import PrometheusAccess
from fulcrum.telemetry.prometheus_calls import Call
from fulcrum.telemetry.prometheus_session import ask_prometheus


@pytest.mark.parametrize("waiting", [0, 4])
def test_a_socket_that_times_out_is_no_failure_to_connect(waiting: int) -> None:
    """With `waiting` connections the server's queue is full: the next one is not even accepted by the kernel."""
    with ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0 if waiting else 8))
        for _ in range(waiting):
            other = stack.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(silent.getsockname())
        call = Call(0.3)  # nothing cuts it: the socket's own time-out ends it
        stack.callback(call.close)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TimeoutError):
            ask_prometheus(url, PrometheusAccess(), call, lambda queries: queries.counts(CLUSTER, 30, 1000.0))
