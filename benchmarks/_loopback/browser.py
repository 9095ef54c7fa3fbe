"""A headless Chromium, driven over its DevTools protocol. `requirements/chromium.sh` installs it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

Json = dict[str, Any]

FOLDER: Final = Path(sys.prefix) / "browser"
CHROMIUM: Final = FOLDER / "chromium"
AXE: Final = FOLDER / "axe.min.js"
_ANSWER_SECONDS: Final = 60.0
_ARGUMENTS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio",
    "--disable-extensions", "--disable-background-networking", "--remote-debugging-port=0", "--hide-scrollbars",
)  # fmt: skip


class ScriptError(Exception):
    """What a page's script threw."""


class Tab:
    """One page. What the page logs as an error is in `errors`; all time-outs are multiplied by `patience`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, patience: float) -> None:
        self._patience = patience
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Json]] = {}
        self.errors: list[str] = []

    async def call(self, method: str, **params: Any) -> Json:
        """Call a method of the protocol."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(self._patience * _ANSWER_SECONDS):
            return await answer

    async def receive(self) -> None:
        """Take in answers and events until the connection ends."""
        async for message in self._socket:
            told = message.json()
            params = told.get("params") or {}
            if told.get("id") in self._waiting:
                answer = self._waiting.pop(told["id"])
                if "error" in told:
                    answer.set_exception(ScriptError(told["error"]["message"]))
                else:
                    answer.set_result(told["result"])
            elif told.get("method") == "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.errors.append((details.get("exception") or {}).get("description") or details["text"])
            elif told.get("method") == "Log.entryAdded":
                self._note(params["entry"])

    def _note(self, entry: Json) -> None:
        # A server that ends is no fault of the page.
        if entry["level"] == "error" and entry["source"] != "network":
            self.errors.append(entry["text"])

    async def open(self, url: str, *, seconds: float = 30.0) -> None:
        """Go to a page once its server answers. Errors: TimeoutError."""
        async with asyncio.timeout(self._patience * seconds):
            while "errorText" in await self.call("Page.navigate", url=url):  # noqa: ASYNC110 - no event says it
                await asyncio.sleep(0.1)
        await self.until("document.readyState === 'complete'", seconds=seconds)

    async def run(self, script: str) -> Any:
        """Evaluate a script in the page, await it, and return its value. Errors: ScriptError."""
        answer = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise ScriptError((details.get("exception") or {}).get("description") or details["text"])
        return answer["result"].get("value")

    async def until(self, script: str, *, seconds: float = 30.0) -> Any:
        """Poll until the script's value is true; returns it. Errors: TimeoutError with the last value."""
        deadline = asyncio.get_running_loop().time() + self._patience * seconds
        while True:
            value = await self.run(script)
            if value:
                return value
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(
                    f"not within {self._patience * seconds:.0f} s: {script} is {value!r}; errors: {self.errors}"
                )
            await asyncio.sleep(0.05)

    async def size(self, width: int, height: int, *, mobile: bool = False, scale: float = 1) -> None:
        """Set the size of the window in CSS pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile
        )

    async def scheme(self, name: str) -> None:
        """`light` or `dark`."""
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    async def screenshot(self, path: Path) -> None:
        """Write what the window shows as PNG."""
        shot = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))  # noqa: ASYNC240 - one small file


@asynccontextmanager
async def browser(patience: float = 1.0) -> AsyncIterator[Tab]:
    """Start Chromium with one empty tab, and end it with its folder."""
    profile = Path(tempfile.mkdtemp(prefix="fulcrum-browser-"))
    process = await asyncio.create_subprocess_exec(
        str(CHROMIUM), *_ARGUMENTS, f"--user-data-dir={profile}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        async with asyncio.timeout(patience * _ANSWER_SECONDS):
            port = await _port(process.stderr)
        draining = asyncio.create_task(_drain(process.stderr))
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [page for page in await answer.json() if page["type"] == "page"]
            async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                tab = Tab(socket, patience)
                receiving = asyncio.create_task(tab.receive())
                for domain in ("Page", "Runtime", "Log"):
                    await tab.call(f"{domain}.enable")
                yield tab
                for task in (receiving, draining):
                    task.cancel()
                await asyncio.gather(receiving, draining, return_exceptions=True)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        shutil.rmtree(profile, ignore_errors=True)


async def _port(stream: asyncio.StreamReader) -> int:
    async for line in stream:
        if b"DevTools listening on ws://" in line:
            return int(line.decode().split("ws://127.0.0.1:")[1].split("/")[0])
    raise RuntimeError("Chromium ended before it listened")


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.read(65536):
        pass
