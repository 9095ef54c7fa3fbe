"""An engine that costs next to nothing: answers both legs at once, or streams 200 chunks, paced or in one go.

    engine.py PORT_PREFILL PORT_DECODE

`"user":"paced"` in a body spreads the chunks of its stream over time, `"user":"held"` holds the last one back for some
seconds; otherwise they leave together.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop
from connection import STREAM_END, STREAM_HEAD, Connection, chunk, load_report, whole

CHUNKS = 200
PACE_SECONDS = 0.01
HOLD_SECONDS = 6.0


PREFILLED = whole(
    b'{"id":"cmpl-1","object":"text_completion","created":1,"model":"bench","choices":[{"index":0,"text":" a",'
    b'"logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":200,"total_tokens":201,"completion_tokens":1},'
    b'"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4,5,6,7,8]],'
    b'"remote_engine_id":"e","remote_request_id":"r","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1}}'
)
ANSWERED = whole(
    b'{"id":"cmpl-1","object":"text_completion","created":1,"model":"bench","choices":[{"index":0,"text":"'
    + b" token" * 50
    + b'","logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":200,"completion_tokens":50}}'
)
EVENT = chunk(
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"bench","choices":[{"index":0,'
    b'"text":" token","logprobs":null,"finish_reason":null}]}\n\n'
)
USAGE = chunk(
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"bench","choices":[],'
    b'"usage":{"prompt_tokens":200,"total_tokens":399,"completion_tokens":199}}\n\n'
)
MODELS = whole(b'{"object":"list","data":[{"id":"bench","object":"model","created":1,"owned_by":"x"}]}')

LOAD = load_report(kv_capacity_tokens=10_000_000, max_batch=1024)


class Engine(Connection):
    """One connection."""

    def __init__(self) -> None:
        super().__init__()
        self._left = 0
        self._end = STREAM_END

    def requested(self, transport: asyncio.Transport, head: bytes, body: bytes) -> None:
        if head.startswith(b"get"):
            transport.write(LOAD if head.startswith(b"get /load ") else MODELS)
        elif b'"do_remote_decode":true' in body:
            transport.write(PREFILLED)
        elif b'"stream":true' not in body:
            transport.write(ANSWERED)
        else:
            self._end = USAGE + STREAM_END if b'"include_usage":true' in body else STREAM_END
            self._stream(transport, body)

    def _stream(self, transport: asyncio.Transport, body: bytes) -> None:
        if b'"user":"paced"' in body:
            transport.write(STREAM_HEAD)
            self._left = CHUNKS - 1
            self._tick()
        elif b'"user":"held"' in body:
            transport.write(STREAM_HEAD + EVENT * (CHUNKS - 1))
            asyncio.get_running_loop().call_later(HOLD_SECONDS, self._tick)
        else:
            transport.write(STREAM_HEAD + EVENT * (CHUNKS - 1) + self._end)

    def _tick(self) -> None:
        if self.transport is None:
            return
        if self._left:
            self._left -= 1
            self.transport.write(EVENT)
            asyncio.get_running_loop().call_later(PACE_SECONDS, self._tick)
        else:
            self.transport.write(self._end)


async def main(ports: list[int]) -> None:
    loop = asyncio.get_running_loop()
    for port in ports:
        await loop.create_server(Engine, "127.0.0.1", port, backlog=1024)
    print("ready", flush=True)
    await loop.create_future()


if __name__ == "__main__":
    uvloop.run(main([int(port) for port in sys.argv[1:]]))
