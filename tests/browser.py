"""A browser without a window: Chromium, driven over its debugging protocol."""

import asyncio
import base64
import itertools
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import orjson

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
    *("--force-color-profile=srgb", "--remote-debugging-port=0"),
)
"""Without a sandbox, as there is none for root."""

NONE: Mapping[str, str] = MappingProxyType({})
PATIENCE = 60_000
"""Milliseconds after which something that should be on the page is not."""


@contextmanager
def chromium(folder: Path) -> Iterator[str]:
    """A running browser that keeps its files in `folder`; gives the address of its debugging protocol."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        try:
            told = next(line for line in lines if line.startswith("DevTools listening on "))
            drain = threading.Thread(target=lambda: [None for _ in lines], daemon=True)
            drain.start()
            yield told.rpartition(" ")[2].strip()
        finally:
            process.terminate()
            process.wait(20)
            drain.join(20)


class Page:
    """One tab. `problems` are what its console complained of."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.problems: list[str] = []
        self._socket = socket
        self._session: str | None = None
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._loaded: asyncio.Queue[str] = asyncio.Queue()
        """Numbers of the loads that are over."""

    async def open(self, url: str, width: int = 1280, height: int = 900, headers: Mapping[str, str] = NONE) -> None:
        """Go there, in a window of that size, with headers that all requests shall have."""
        context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        target = await self.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.call("Page.setLifecycleEventsEnabled", enabled=True)
        await self.send_headers(headers)
        await self.resize(width, height)
        await self.prefer("prefers-color-scheme", "light")
        await self.go(url)

    async def go(self, url: str) -> None:
        """Go elsewhere, and return when that is loaded: what is asked of the page until then is asked of the one before
        it, which may well have the answer."""
        load = (await self.call("Page.navigate", url=url))["loaderId"]
        async with asyncio.timeout(PATIENCE / 1000):
            while await self._loaded.get() != load:
                pass

    async def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **metrics)

    async def prefer(self, feature: str, value: str) -> None:
        """Set a user's preference, as media queries see it."""
        await self.call("Emulation.setEmulatedMedia", features=[{"name": feature, "value": value}])

    async def send_headers(self, headers: Mapping[str, str]) -> None:
        """From now on, all requests have these."""
        await self.call("Network.setExtraHTTPHeaders", headers=dict(headers))

    async def value(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are waited for."""
        answer = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, condition: str) -> None:
        """Return when the condition holds."""
        script = f"""new Promise((resolve) => {{
            const limit = performance.now() + {PATIENCE};
            const look = () => {{
                if ({condition}) resolve(true);
                else if (performance.now() > limit) resolve(false);
                else setTimeout(look, 20);
            }};
            look();
        }})"""
        assert await self.value(script), f"never so: {condition}"

    async def press(self, key: str) -> None:
        """A key, as the user presses it."""
        special = {"Enter": ("\r", 13), "Escape": ("", 27), "Tab": ("", 9)}
        text, code = special.get(key, (key, ord(key.upper()[0])))
        for kind in ("keyDown", "keyUp"):
            sent = {"type": kind, "key": key, "windowsVirtualKeyCode": code}
            await self.call("Input.dispatchKeyEvent", **sent | ({"text": text} if text and kind == "keyDown" else {}))

    async def type(self, text: str) -> None:
        await self.call("Input.insertText", text=text)

    async def screenshot(self, path: Path) -> None:
        answer = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=False)
        path.write_bytes(base64.b64decode(answer["data"]))

    async def call(self, method: str, **params: Any) -> Any:
        """One command of the protocol."""
        number = next(self._ids)
        future = self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": params}
        whole = message | ({"sessionId": self._session} if self._session else {})
        await self._socket.send_str(orjson.dumps(whole).decode())
        async with asyncio.timeout(PATIENCE / 1000 + 10):
            return await future

    async def listen(self) -> None:
        """Take what the browser sends, to the end of the connection."""
        async for message in self._socket:
            told = orjson.loads(message.data)
            if "id" in told:
                self._answer(self._answers.pop(told["id"]), told)
            else:
                self._note(told["method"], told.get("params", {}))

    def _answer(self, future: asyncio.Future[Any], told: dict[str, Any]) -> None:
        if future.done():
            return
        if "error" in told:
            future.set_exception(RuntimeError(told["error"]["message"]))
        else:
            future.set_result(told["result"])

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.lifecycleEvent" and params["name"] == "load":
            self._loaded.put_nowait(params["loaderId"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(str(params["entry"]))


@asynccontextmanager
async def opened_page(address: str) -> AsyncIterator[Page]:
    """A tab of a running browser, with a profile of its own."""
    async with aiohttp.ClientSession() as session, session.ws_connect(address, max_msg_size=0) as socket:
        page = Page(socket)
        listening = asyncio.create_task(page.listen())
        try:
            yield page
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening
