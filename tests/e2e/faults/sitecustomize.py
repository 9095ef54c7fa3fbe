"""Makes a vLLM engine shake hands through `side_channel_relay.py` of its peer's Pod; nothing else about it changes.

Python runs this at start in each process that has this folder in PYTHONPATH. The agent's own probe (an asyncio socket)
asks the engine beside it directly, as in a Pod whose network lets no peer in.
"""

from __future__ import annotations

import os
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
