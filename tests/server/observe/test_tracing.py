"""Spans of calls, as a collector gets them."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from server.http.front import OPEN
from server.observe.tracing import tracing_to
from server.settings import ConfigError
from tests.server.live import CHAT, Live, chat_body, live_server

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="needs the extra otel")
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

HEADERS = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "x-request-id": "abc"}


@asynccontextmanager
async def traced() -> AsyncIterator[tuple[Live, InMemorySpanExporter]]:
    """A server, and its spans as they end."""
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    async with live_server(front=replace(OPEN, tracing=provider)) as live:
        yield live, kept


async def span_of(body: dict[str, object]) -> ReadableSpan:
    """The span of a call; others have none."""
    async with traced() as (live, kept):
        for path in ("/v1/models", "/health/live"):
            await live.get(path)
        await live.ask("POST", CHAT, body, **HEADERS)
    (span,) = kept.get_finished_spans()
    return span


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_is_a_span_below_its_clients_own(stream: bool) -> None:
    span = await span_of(chat_body(max_tokens=5, stream=stream))
    assert span.name == f"POST {CHAT}"
    assert span.parent is not None and span.parent.span_id == 0xB7AD6B7169203331
    assert span.context is not None and span.context.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    found = dict(span.attributes or {})
    told = {"http.response.status_code": 200, "gen_ai.request.id": "abc", "gen_ai.request.model": "fake"}
    told |= {"gen_ai.usage.output_tokens": 5, "lengthwise.state": "finished"}
    assert {name: found[name] for name in told} == told
    assert isinstance(found["gen_ai.latency.time_to_first_token"], float)


async def test_a_refused_call_tells_its_error() -> None:
    told = dict((await span_of({"messages": []})).attributes or {})
    assert told["http.response.status_code"] == 400 and told["error.type"]
    assert "gen_ai.usage.output_tokens" not in told


async def test_calls_of_the_same_request_id_at_once_keep_their_spans_apart() -> None:
    """The span of each told of the latest call of that name, also where it was refused and had none."""
    async with traced() as (live, kept):
        live.dispatcher.pause = 1
        calls = [await live.begin(CHAT, chat_body(max_tokens=most), 1, **HEADERS) for most in (5, 7)]
        await live.refused(CHAT, {"messages": []}, 400, **HEADERS)
        live.dispatcher.release()
        await asyncio.gather(*calls)
    told = [dict(span.attributes or {}) for span in kept.get_finished_spans()]
    counts = [(one["http.response.status_code"], one.get("gen_ai.usage.output_tokens")) for one in told]
    assert sorted(counts, key=str) == [(200, 5), (200, 7), (400, None)]
    assert {one["gen_ai.request.id"] for one in told} == {"abc"}


async def test_spans_reach_a_collector_before_the_server_has_gone() -> None:
    received: list[bytes] = []

    async def collect(request: web.Request) -> web.Response:
        received.append(await request.read())
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", collect)
    async with TestServer(app) as collector:
        async with live_server(front=replace(OPEN, tracing=tracing_to(str(collector.make_url("/v1/traces"))))) as live:
            await live.chat()
        assert b"gen_ai.request.model" in received[0]


def test_without_the_extra_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"pip install 'lengthwise\[otel\]'"):
        tracing_to("http://127.0.0.1:1")
