"""Faults of a vLLM engine that environment variables ask for; nothing else about it changes.

Python runs this at start in each process that has this folder in PYTHONPATH.

FULCRUM_TEST_RELAY_PORT: the engine shakes hands through `side_channel_relay.py` of its peer's Pod. The agent's own
probe (an asyncio socket) asks the engine beside it directly, as in a Pod whose network lets no peer in.
FULCRUM_TEST_PULL_BYTES_PER_SECOND: its KV pulls are as slow as over such a link (`slow_pulls.py`).
"""

from __future__ import annotations

import os
import sys
from typing import Any

if relay_port := os.environ.get("FULCRUM_TEST_RELAY_PORT"):
    import zmq

    _connect = zmq.Socket.connect

    def connect(self: zmq.Socket[Any], addr: str) -> Any:
        """Connect to the relay where the address is a side channel's."""
        if type(self) is zmq.Socket and addr.endswith(":5600"):
            addr = f"{addr.removesuffix(':5600')}:{relay_port}"
        return _connect(self, addr)

    zmq.Socket.connect = connect  # type: ignore[method-assign]

if bytes_per_second := os.environ.get("FULCRUM_TEST_PULL_BYTES_PER_SECOND"):
    from slow_pulls import AfterNixl

    sys.meta_path.insert(0, AfterNixl(float(bytes_per_second)))
