"""The gateway's own events, in the dialect of a path."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import orjson

from server.api.errors import ApiError, error_body
from server.api.operation import OPERATION
from server.api.output.messages import MessageEvent
from server.api.output.sse import DONE, frame
from server.gateway.passage import RESPONSES, ProxiedCall
from server.gateway.usage import SentResponse
from server.request_id import request_id

MESSAGES = "/v1/messages"
TRANSIENT = frozenset({408, 409, 425, 429})


class Response(msgspec.Struct, frozen=True):
    id: str
    model: str
    created_at: int
    status: str
    error: dict[str, str] | None = None
    output: tuple[()] = ()
    object: str = "response"


class ResponseEvent(msgspec.Struct, frozen=True):
    type: str
    sequence_number: int
    response: Response


def keep_alives(passage: ProxiedCall) -> Iterator[Sequence[msgspec.Struct]]:
    """None for OpenAI's older APIs. Codex counts events only; SDKs want `created` first."""
    path = passage.asked.path
    while True:
        if path == RESPONSES:
            yield [*_created(passage.response), _event(passage.response, "in_progress")]
        else:
            yield [MessageEvent(type="ping")] if path == MESSAGES else ()


def last_events(passage: ProxiedCall, error: ApiError, *, first: bool = False) -> bytes:
    """Of a stream that fails; `first`: its backend sent no event."""
    request, response = passage.asked, passage.response
    if request.path == RESPONSES:
        failure = {"code": _code(error.status), "message": error.message}
        return frame([*(_created(response) if first else ()), _event(response, "failed", failure)])
    if (dialect := request[OPERATION].dialect) is not None:
        return frame([dialect.word(error, request_id(request))])
    return frame([error_body(error)]) + DONE


def error_events(passage: ProxiedCall, status: int, body: bytes) -> bytes:
    """As it came where it is an object; 502 for what should have been a stream."""
    request = passage.asked
    found: Any = None
    with suppress(ValueError):
        found = orjson.loads(body)
    match found:
        case _ if status < 400:
            status, text = 502, f"the backend answers {status} without a stream"
        case {"error": {"message": str(text)}}:
            if request.path != RESPONSES:
                head, end = (b"", DONE) if request[OPERATION].dialect is None else (b"event: error\n", b"")
                return head + b"data: %b\n\n" % orjson.dumps(found) + end
        case {"error": str(text)} | {"message": str(text)} | {"detail": str(text)}:
            pass
        case _:
            text = body.decode(errors="replace") or f"the backend answers {status}"
    failure = ApiError(status, text, code="backend_failed" if status == 502 else None)
    return last_events(passage, failure, first=True)


def _created(response: SentResponse) -> Iterator[ResponseEvent]:
    """Unless an event was sent."""
    if response.number < 0:
        yield _event(response, "in_progress", kind="created")


def _event(response: SentResponse, status: str, error: dict[str, str] | None = None, kind: str = "") -> ResponseEvent:
    """The next one; `kind` is by default the status."""
    response.number += 1
    own = Response(response.id, response.model, response.created_at, status, error)
    return ResponseEvent(f"response.{kind or status}", response.number, own)


def _code(status: int) -> str:
    """OpenAI's; Codex asks again after all but `invalid_prompt`."""
    if status == 429:
        return "rate_limit_exceeded"
    return "invalid_prompt" if 400 <= status < 500 and status not in TRANSIENT else "server_error"
