"""GET /dashboard/events: snapshots, the same bytes for all viewers; slow readers miss some, stalled ones are cut
off.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from pathlib import Path

import msgspec
from aiohttp import hdrs, web

from engine.messages import FinishReason, Report
from scheduler.request import Request
from server.api.errors import ApiError
from server.api.output.reply import encode, json_response
from server.api.output.sse import EventStream
from server.api.served_model import LIMITS
from server.dashboard.scene import DashboardState
from server.version import VERSION

log = logging.getLogger(__name__)

INTERVAL = 0.125  # seconds between snapshots

QUIET_TICKS = 8  # while nothing happens, one tick in this many sends

MOST_VIEWERS = 32


class Feed:
    """Observes requests, receives reports, makes `frames`. Event loop only."""

    def __init__(self, interval: float = INTERVAL) -> None:
        self._interval = interval
        self._scene: DashboardState | None = None  # nothing to show yet
        self._lost = False  # after a fault, until somebody looks again
        self.viewers = 0
        self._frame = b""
        self._ticked = asyncio.Event()
        self._ticking: asyncio.Task[None] | None = None

    def show(self, scene: DashboardState) -> None:
        scene.begin()
        self._scene, self._lost = scene, False

    def receive(self, report: Report) -> None:
        """Call before the dispatcher takes the report. Never raises."""
        if self._scene is None or self._lost:
            return
        try:
            self._scene.receive(report)
        except Exception:  # a dashboard's fault must not reach requests
            log.exception("the dashboard lost track; it begins anew with the next that is opened")
            self._lost = True
            self._end()

    def on_first_token(self, request: Request, now: float) -> None:
        if self._scene is not None:
            self._scene.on_first_token(request, now)

    def on_end(self, request: Request, reason: FinishReason | None, now: float) -> None:
        if self._scene is not None:
            self._scene.on_end(request, reason, now)

    async def frames(self) -> AsyncGenerator[bytes]:
        """An introduction, then snapshots. Raises ApiError 503 with too many viewers. Close it unless it ended."""
        if (scene := self._scene) is None:
            return
        if self.viewers >= MOST_VIEWERS:
            raise ApiError(503, f"{MOST_VIEWERS} dashboards are open already; close one", code="too_many_viewers")
        self.viewers += 1
        try:
            if self._lost:
                scene.begin()
                self._lost = False
            if self._ticking is None:
                scene.forget()
                self._ticking = asyncio.create_task(self._tick_on(scene), name="dashboard")
            ticking = self._ticking
            yield _event("hello", scene.hello())
            while self._ticking is ticking:
                await self._ticked.wait()
                if self._ticking is ticking:
                    yield self._frame
        finally:
            self.viewers -= 1
            if not self.viewers:
                self._end()

    def close(self) -> None:
        self._scene = None
        self._end()

    async def _tick_on(self, scene: DashboardState) -> None:
        quiet = 0
        while True:
            await asyncio.sleep(self._interval)
            quiet += 1
            if scene.stirred or quiet >= QUIET_TICKS:
                quiet = 0
                try:
                    self._frame = _event("tick", scene.tick())
                except Exception:
                    log.exception("the dashboard lost track")
                    self._end()
                    return
                self._wake()

    def _end(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
            self._wake()

    def _wake(self) -> None:
        self._ticked.set()
        self._ticked.clear()


def _event(name: str, body: msgspec.Struct) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(body))


FEED = web.AppKey("feed", Feed)


async def send_feed(request: web.Request) -> web.StreamResponse:
    if (feed := request.app.get(FEED)) is None:
        raise web.HTTPNotFound
    async with aclosing(feed.frames()) as frames:
        try:
            first = await anext(frames)
        except StopAsyncIteration:
            raise ApiError(503, "there is nothing to see", code="no_feed") from None
        async with EventStream(request, request.app[LIMITS]) as stream:
            if request.method == hdrs.METH_HEAD:
                return stream.response
            with suppress(ConnectionError):
                await stream.forward(first)
                async for frame in frames:
                    await stream.forward(frame)
            return stream.response


async def close_feed(app: web.Application) -> None:
    if (feed := app.get(FEED)) is not None:
        feed.close()


FOLDER = Path(__file__).parent / "static"
TYPES: Mapping[str, str] = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # revalidated: 304
}


def _file(name: str) -> web.FileResponse:
    path = FOLDER / name
    if path.parent != FOLDER or path.suffix not in TYPES or not path.is_file():
        raise web.HTTPNotFound
    return web.FileResponse(path, headers={**HEADERS, "Content-Type": f"{TYPES[path.suffix]}; charset=utf-8"})


NAME = web.AppKey("name", str)


class Index(msgspec.Struct, frozen=True):
    """GET / for programs."""

    name: str
    version: str
    model: str
    endpoints: list[str]


async def index(request: web.Request) -> web.StreamResponse:
    """Send a browser the dashboard, and other clients the names of the endpoints."""
    if "text/html" in request.headers.get("Accept", ""):  # a browser asks
        page = _file("index.html")
        page.headers["Vary"] = "Accept"
        return page
    routes = [(route.method, route.resource) for route in request.app.router.routes() if route.method != hdrs.METH_HEAD]
    endpoints = [f"{method} {resource.canonical}" for method, resource in routes if resource is not None]
    response = json_response(Index("Lengthwise", VERSION, request.app[NAME], endpoints))
    response.headers["Vary"] = "Accept"
    return response


async def send_chat(request: web.Request) -> web.FileResponse:
    return _file("chat.html")


async def send_file(request: web.Request) -> web.FileResponse:
    return _file(request.match_info["name"])
