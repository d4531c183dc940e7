"""Spans of calls, as a collector gets them."""

import asyncio
import sys
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from server.http.front import OPEN
from server.observe.tracing import tracing_to
from server.settings import ConfigError
from tests.server.live import chat_body, live_server

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="needs the extra otel")
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

HEADERS = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "x-request-id": "abc"}


async def spans_of(*calls: dict[str, object]) -> tuple[ReadableSpan, ...]:
    """The spans of some chat calls."""
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    async with live_server(front=replace(OPEN, tracing=provider)) as live:
        for path in ("/v1/models", "/health/live"):
            await live.get(path)
        for body in calls:
            await live.ask("POST", "/v1/chat/completions", body, **HEADERS)
    return kept.get_finished_spans()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_is_a_span_below_its_clients_own(stream: bool) -> None:
    (span,) = await spans_of(chat_body(max_tokens=5, stream=stream))
    assert span.name == "POST /v1/chat/completions"
    assert span.parent is not None and span.parent.span_id == 0xB7AD6B7169203331
    assert span.context is not None and span.context.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    told = dict(span.attributes or {})
    assert told["http.response.status_code"] == 200
    assert (told["gen_ai.request.id"], told["gen_ai.request.model"]) == ("abc", "fake")
    assert told["gen_ai.usage.output_tokens"] == 5
    assert told["lengthwise.state"] == "finished"
    assert isinstance(told["gen_ai.latency.time_to_first_token"], float)


async def test_a_refused_call_tells_its_error() -> None:
    (span,) = await spans_of({"messages": []})
    told = dict(span.attributes or {})
    assert told["http.response.status_code"] == 400
    assert told["error.type"]
    assert "gen_ai.usage.output_tokens" not in told


async def test_calls_of_the_same_request_id_at_once_keep_their_spans_apart() -> None:
    """The span of each told of the latest call of that name, also where it was refused and had none."""
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))

    async with live_server(front=replace(OPEN, tracing=provider)) as live:
        live.dispatcher.pause = 1

        def ask(body: object) -> Coroutine[Any, Any, object]:
            return live.post("/v1/chat/completions", body, **HEADERS)

        first = asyncio.create_task(ask(chat_body(max_tokens=5)))
        await live.dispatcher.until(lambda: len(live.dispatcher.submitted) == 1)
        second = asyncio.create_task(ask(chat_body(max_tokens=7)))
        await live.dispatcher.until(lambda: len(live.dispatcher.submitted) == 2)
        await ask({"messages": []})
        live.dispatcher.release()
        await asyncio.gather(first, second)
    told = [dict(span.attributes or {}) for span in kept.get_finished_spans()]
    counts = [(one["http.response.status_code"], one.get("gen_ai.usage.output_tokens")) for one in told]
    assert sorted(counts, key=str) == [(200, 5), (200, 7), (400, None)]
    assert {one["gen_ai.request.id"] for one in told} == {"abc"}


async def test_spans_reach_a_collector_before_the_server_has_gone() -> None:
    received: asyncio.Queue[bytes] = asyncio.Queue()

    async def collect(request: web.Request) -> web.Response:
        received.put_nowait(await request.read())
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", collect)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/traces"
    async with live_server(front=replace(OPEN, tracing=tracing_to(endpoint))) as live:
        await live.chat()
    assert b"gen_ai.request.model" in received.get_nowait()
    await runner.cleanup()


def test_without_the_extra_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"pip install 'lengthwise\[otel\]'"):
        tracing_to("http://127.0.0.1:1")
