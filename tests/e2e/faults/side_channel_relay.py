"""Passes connections on to the NIXL side channel of its Pod's engine, unless it was told to swallow them.

The first one that starts while there is a file `block-next` in its folder removes the file and swallows all that comes
for as long as it lives, as a firewall does. So a restart of the Pod heals it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

SIDE_CHANNEL_PORT = 5600


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def main() -> None:
    address, port = os.environ["POD_IP"], int(os.environ["FULCRUM_TEST_RELAY_PORT"])
    try:
        (Path(os.environ["FULCRUM_TEST_FAULTS"]) / "block-next").unlink()
        blocked = True
    except FileNotFoundError:
        blocked = False
    print(f"relay_started blocked={blocked}", flush=True)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        print("handshake_begun", flush=True)
        if blocked:
            await reader.read(-1)  # until the peer gives up
            writer.close()
            return
        try:
            to_engine = await asyncio.open_connection(address, SIDE_CHANNEL_PORT)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, to_engine[1]), pump(to_engine[0], writer))

    server = await asyncio.start_server(connected, address, port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
