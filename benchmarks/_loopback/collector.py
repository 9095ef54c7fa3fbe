"""A collector that costs next to nothing: answers 200 to every export and reads nothing of it.

collector.py PORT
"""

from __future__ import annotations

import asyncio
import sys

import uvloop
from connection import Connection, whole

TAKEN = whole(b"")


class Collector(Connection):
    """One connection."""

    def requested(self, transport: asyncio.Transport, head: bytes, body: bytes) -> None:
        transport.write(TAKEN)


async def main(port: int) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_server(Collector, "127.0.0.1", port)
    print("ready", flush=True)
    await loop.create_future()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
