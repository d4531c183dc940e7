"""OpenTelemetry spans of generating calls (extra `otel`); no prompts or answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.typedefs import Handler

from server.access import holder_of
from server.api.errors import error_code
from server.api.operation import OPERATION
from server.api.register import CALL, REGISTER
from server.request_id import request_id
from server.settings import ConfigError
from server.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


TRACING: web.AppKey[TracerProvider] = web.AppKey("tracing")


def tracing_to(endpoint: str) -> TracerProvider:
    """OTLP over HTTP in batches, from a thread. Raises ConfigError without the extra."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        message = "--otlp-traces-endpoint needs OpenTelemetry, which is not installed: pip install 'lengthwise[otel]'"
        raise ConfigError(message) from None
    provider = TracerProvider(resource=Resource.create({"service.name": "lengthwise", "service.version": VERSION}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    return provider


async def close_tracing(app: web.Application) -> None:
    """Flush; slow, so not on the event loop."""
    if TRACING in app:
        await asyncio.to_thread(app[TRACING].shutdown)


@web.middleware
async def trace_calls(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A span for each generating call; `traceparent` is its parent."""
    if TRACING not in request.app or not request[OPERATION].generates:
        return await handler(request)
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parent = TraceContextTextMapPropagator().extract(request.headers)
    tracer = request.app[TRACING].get_tracer("lengthwise", VERSION)
    with tracer.start_as_current_span(f"POST {request.path}", context=parent, kind=SpanKind.SERVER) as span:
        try:
            response = await handler(request)
            span.set_attribute("http.response.status_code", response.status)
            return response
        finally:
            told = _attributes(request)
            span.set_attributes({name: value for name, value in told.items() if value is not None})


def _attributes(request: web.Request) -> dict[str, str | int | float | None]:
    """Latencies in seconds."""
    told: dict[str, str | int | float | None] = {
        "http.route": request.path,
        "gen_ai.request.id": request_id(request),
        "error.type": error_code(request),
    }
    status = request.app[REGISTER].status(request[CALL], holder_of(request)) if CALL in request else None
    if status is None:
        return told
    metrics = status.metrics
    return told | {
        "gen_ai.request.model": status.model,
        "gen_ai.request.max_tokens": status.max_tokens,
        "gen_ai.response.id": status.id,
        "gen_ai.usage.input_tokens": status.prompt_tokens,
        "gen_ai.usage.output_tokens": status.generated_tokens,
        "gen_ai.latency.time_in_queue": _seconds(metrics.queue_time_ms),
        "gen_ai.latency.time_to_first_token": _seconds(metrics.time_to_first_token_ms),
        "gen_ai.latency.e2e": status.age_s,
        "lengthwise.state": str(status.state),
        "lengthwise.predicted_tokens": metrics.predicted_tokens,
    }


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
