"""Prompts -> the HTTP response with their answers, whole or streamed.

It knows no endpoint's format; a Form makes the bodies.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Protocol

import msgspec
from aiohttp import web

from engine.messages import RowUpdate
from server.call import Answer, Call, opened
from server.errors import ApiError, error_body, internal_error
from server.prompts import Prompt
from server.reply import Metrics, Usage
from server.request_id import request_id
from server.schema import ChatBody, CompletionBody, StreamOptions
from server.service import SERVICE
from server.sse import EventStream
from server.updates import Arrivals, Updates
from server.wire import encode

log = logging.getLogger(__name__)


class Form(Protocol):
    """How one endpoint words its answers."""

    def event(self, answer: Answer, update: RowUpdate, usage: Usage | None) -> msgspec.Struct | None:
        """What an update tells the client; None while it tells nothing."""

    def closing(self, usage: Usage, metrics: Metrics) -> msgspec.Struct:
        """The event with the token counts of the whole call."""

    def whole(self, results: Sequence[tuple[Answer, RowUpdate]], usage: Usage, metrics: Metrics) -> msgspec.Struct:
        """All answers at once, each as a single update."""


async def respond(
    request: web.Request, body: ChatBody | CompletionBody, prompts: Sequence[Prompt], form: Form, arrival: float
) -> web.StreamResponse:
    """Generate what the body asks for and answer the client; raises ApiError until the answer begins.

    `arrival` is when the body was there, in seconds of the dispatcher's clock.
    """
    async with opened(body, prompts, request.app[SERVICE], arrival) as call:
        if body.stream:
            return await _streamed(request, call, form, body.stream_options or StreamOptions())
        return await _whole(call, form)


async def _whole(call: Call, form: Form) -> web.Response:
    parts: list[list[RowUpdate]] = [[] for _ in call.answers]
    async with Updates(call.requests) as updates:
        async for arrivals in updates:
            for place, update in arrivals.items():
                parts[place].append(call.receive(place, update))
    results = [(answer, joined(updates)) for answer, updates in zip(call.answers, parts, strict=True)]
    return json_response(form.whole(results, call.usage(), call.metrics()))


def json_response(body: msgspec.Struct, status: int = 200) -> web.Response:
    """A structure as a whole response."""
    return web.Response(body=encode(body), status=status, content_type="application/json")


def joined(updates: Sequence[RowUpdate]) -> RowUpdate:
    """Updates of one row, in order, as one; at least one, the last with the finish reason."""
    return replace(
        updates[-1],
        token_ids=tuple(chain.from_iterable(update.token_ids for update in updates)),
        text="".join(update.text for update in updates),
        logprobs=tuple(chain.from_iterable(update.logprobs for update in updates)),
        prompt_logprobs=next((u.prompt_logprobs for u in updates if u.prompt_logprobs is not None), None),
    )


async def _streamed(request: web.Request, call: Call, form: Form, options: StreamOptions) -> web.StreamResponse:
    async with EventStream(request, request.app[SERVICE].limits) as stream:
        # When the client is gone nobody is left to tell; leaving cancels what runs.
        with suppress(ConnectionError):
            await _tell(stream, request, call, form, options)
        return stream.response


async def _tell(stream: EventStream, request: web.Request, call: Call, form: Form, options: StreamOptions) -> None:
    """Everything from the first token to the end marker; failures too, as the status is sent by now."""
    try:
        await _relay(stream, call, form, options)
    except ApiError as error:
        await stream.send([error_body(error)])
    except ConnectionError:
        raise
    except Exception:
        log.exception("request %s failed in its stream", request_id(request))
        await stream.send([error_body(internal_error(request))])
    await stream.done()


async def _relay(stream: EventStream, call: Call, form: Form, options: StreamOptions) -> None:
    """Tell the client each update as it comes, then the token counts if it wants them."""
    async with Updates(call.requests) as updates:
        async for arrivals in updates:
            await stream.send(_events(call, form, arrivals, bool(options.continuous_usage_stats)))
    if options.include_usage:
        await stream.send([form.closing(call.usage(), call.metrics())])


def _events(call: Call, form: Form, arrivals: Arrivals, counted: bool) -> list[msgspec.Struct]:
    received = [(call.answers[place], call.receive(place, update)) for place, update in arrivals.items()]
    usage = call.usage() if counted else None
    events = [form.event(answer, update, usage) for answer, update in received]
    return [event for event in events if event is not None]
