"""The gateway's own events, in the dialect of a path."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import msgspec
import orjson
from aiohttp import web

from server.api.errors import ApiError, error_body
from server.api.operation import OPERATION
from server.api.output.messages import MessageEvent
from server.api.output.sse import DONE, frame
from server.api.register import CALL
from server.request_id import request_id

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
TRANSIENT = frozenset({408, 409, 425, 429})


class Response(msgspec.Struct, frozen=True):
    id: str
    status: str
    created_at: int
    model: str = ""
    error: dict[str, str] | None = None
    output: tuple[()] = ()
    object: str = "response"


class ResponseEvent(msgspec.Struct, frozen=True):
    type: str
    sequence_number: int
    response: Response


def keep_alives(request: web.Request) -> Iterator[Sequence[msgspec.Struct]]:
    """None for OpenAI's older APIs. Codex counts events only; SDKs want `created` first."""
    begun = _response(request, "in_progress")
    for number in count(1):
        if request.path == RESPONSES:
            created = [ResponseEvent("response.created", 0, begun)] if number == 1 else []
            yield [*created, ResponseEvent("response.in_progress", number, begun)]
        else:
            yield [MessageEvent(type="ping")] if request.path == MESSAGES else ()


def last_events(request: web.Request, error: ApiError, *, first: bool = False) -> bytes:
    """Of a stream that fails; `first`: its backend sent no event."""
    if request.path == RESPONSES:
        failure = {"code": _code(error.status), "message": error.message}
        failed = ResponseEvent("response.failed", 1, _response(request, "failed", failure))
        return frame([ResponseEvent("response.created", 0, _response(request, "in_progress")), failed][not first :])
    if (dialect := request[OPERATION].dialect) is not None:
        return frame([dialect.word(error, request_id(request))])
    return frame([error_body(error)]) + DONE


def error_events(request: web.Request, status: int, body: bytes) -> bytes:
    """As it came where it is an object; 502 for what should have been a stream."""
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
    return last_events(request, failure, first=True)


def _response(request: web.Request, status: str, error: dict[str, str] | None = None) -> Response:
    return Response(request[CALL].replace("call-", "resp_"), status, int(time.time()), error=error)


def _code(status: int) -> str:
    """OpenAI's; Codex asks again after all but `invalid_prompt`."""
    if status == 429:
        return "rate_limit_exceeded"
    return "invalid_prompt" if 400 <= status < 500 and status not in TRANSIENT else "server_error"
