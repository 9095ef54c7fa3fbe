"""Both roles of a small model's engine: every leg takes some time, and some requests do not go well.

    patient_engine.py PORT_PREFILL PORT_DECODE

`"user":"crash"` in a body is answered with 500, `"user":"flood"` with megabytes of stream, and `"stream_interval":1000`
with events of 1,000 tokens each.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop
from connection import STREAM_END, STREAM_HEAD, Connection, chunk
from engine import ANSWERED, EVENT, LOAD, MODELS, PREFILLED

LEG_SECONDS = 0.025
"""What each leg takes: as much as the prefill of a short prompt on one GPU."""
FLOOD_EVENTS = 20_000
"""3 MB of a stream."""
GATHERED = chunk(
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"bench","choices":[{"index":0,"text":"'
    + b" token" * 1000
    + b'","logprobs":null,"finish_reason":null,"token_ids":['
    + b",".join([b"7"] * 1000)
    + b"]}]}\n\n"
)
CRASHED_BODY = b'{"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","code":500}}'
CRASHED = b"HTTP/1.1 500 X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(CRASHED_BODY),
    CRASHED_BODY,
)


class Engine(Connection):
    """One connection."""

    def requested(self, transport: asyncio.Transport, head: bytes, body: bytes) -> None:
        if head.startswith(b"get"):
            transport.write(LOAD if head.startswith(b"get /load ") else MODELS)
            return
        fields = body[-4096:] if len(body) > 8192 else body  # what tells requests apart stands behind their prompts
        if b'"user":"crash"' in fields:
            answer = CRASHED
        elif b'"do_remote_decode":true' in fields:
            answer = PREFILLED
        elif b'"stream":true' not in fields:
            answer = ANSWERED
        elif b'"user":"flood"' in fields:
            answer = STREAM_HEAD + EVENT * FLOOD_EVENTS + STREAM_END
        elif b'"stream_interval":1000' in fields:
            answer = STREAM_HEAD + GATHERED * 16 + STREAM_END
        else:
            answer = STREAM_HEAD + EVENT * 50 + STREAM_END
        asyncio.get_running_loop().call_later(LEG_SECONDS, self._answer, answer)

    def _answer(self, answer: bytes) -> None:
        if self.transport is not None:
            self.transport.write(answer)


async def main(ports: list[int]) -> None:
    loop = asyncio.get_running_loop()
    for port in ports:
        await loop.create_server(Engine, "127.0.0.1", port, backlog=1024)
    print("ready", flush=True)
    await loop.create_future()


if __name__ == "__main__":
    uvloop.run(main([int(port) for port in sys.argv[1:]]))
