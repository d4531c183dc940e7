"""ApiError, its JSON body, and the middleware that answers every failure with one."""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from math import ceil

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from models.files import is_disk_full
from models.options import suggest
from scheduler.request import Failure, Unpromised
from server.api.operation import BY_HANDLER, OPERATION
from server.api.output.reply import BY, encode, write_time
from server.request_id import request_id

log = logging.getLogger(__name__)

_CODE = web.RequestKey("error_code", str)


STATUSES: Mapping[int, tuple[str, str]] = {
    400: ("BadRequestError", "invalid_request"),
    401: ("AuthenticationError", "invalid_api_key"),
    403: ("PermissionDeniedError", "forbidden"),
    404: ("NotFoundError", "not_found"),
    405: ("MethodNotAllowedError", "method_not_allowed"),
    408: ("RequestTimeoutError", "request_timeout"),
    413: ("PayloadTooLargeError", "body_too_large"),
    415: ("UnsupportedMediaTypeError", "unsupported_encoding"),
    417: ("ExpectationFailedError", "expectation_failed"),
    421: ("MisdirectedRequestError", "misdirected_request"),
    429: ("RateLimitError", "rate_limit_exceeded"),
    499: ("RequestCancelledError", "request_cancelled"),
    500: ("InternalServerError", "internal_error"),
    503: ("ServiceUnavailableError", "unavailable"),
    504: ("DeadlineExceededError", "deadline_exceeded"),
    507: ("InsufficientStorageError", "disk_full"),
}  # status -> `type` and usual `code`

PACED = frozenset(range(400, 500)) - {429, 499}  # others are immediate: the call may return, or is over
UNSERVED = frozenset({"promise_refused", "deadline_exceeded", "no_executor"})  # codes of calls that never ran

LONGEST_MESSAGE = 1000  # characters, since a message may quote the request


@dataclass(eq=False)
class ApiError(Exception):
    """An error for the client: `message` says what to change, `param` names the field; `close` ends the connection."""

    status: int
    message: str
    _: KW_ONLY
    param: str | None = None
    code: str | None = None
    close: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.message) > LONGEST_MESSAGE:
            self.message = f"{self.message[:LONGEST_MESSAGE]} ..."

    def __str__(self) -> str:
        return self.message


class ErrorDetail(msgspec.Struct, frozen=True):
    """The inside of an OpenAI error object."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct, frozen=True):
    """An OpenAI error object."""

    error: ErrorDetail


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def invalid(path: str, fault: str, code: str | None = None, *, status: int = 400) -> ApiError:
    """Status 400 for the value at a path such as `messages[0].content`, whose first name is the `param`."""
    return ApiError(status, f"{path}: {fault}", param=re.split(r"[.\[]", path)[0] or None, code=code)


def busy(message: str, code: str, retry_after: float, *, close: bool = False) -> ApiError:
    """Status 429: retry after whole seconds, 1 at least, as in HTTP, and milliseconds, as OpenAI's clients prefer."""
    headers = {"Retry-After": str(max(1, ceil(retry_after))), "retry-after-ms": str(max(1, ceil(retry_after * 1000)))}
    return ApiError(429, message, code=code, close=close, headers=headers)


SLACK = 0.1  # of the seconds to the time offered, and seconds


def askable(by: float, now: float) -> float:
    """A promise that is asked for a little later."""
    return by + SLACK * (by - now) + SLACK


def unpromised(error: Unpromised, promised: float, now: float) -> ApiError:
    """Status 503, with the nearest time that could be promised, and how much later that is; SDKs, which would ask for
    the same again, shall not.
    """
    headers, hint = {"Retry-After": "1"}, "too little is measured yet, which takes answers without a promise"
    if error.by is not None:
        by = askable(error.by, now)
        nearest = write_time(by - now)
        headers, hint = {"Retry-After": str(max(1, ceil(by - max(promised, now)))), BY: nearest}, f"{nearest} could be"
    headers["x-should-retry"] = "false"
    return ApiError(503, f"{error}: {hint}", param="promise", code="promise_refused", headers=headers)


_FAILURES: Mapping[Failure | None, tuple[int, str]] = {
    Failure.SHUTDOWN: (503, "server_shutting_down"),
    Failure.EXECUTOR: (503, "executor_failed"),
    Failure.SCHEDULER: (500, "scheduler_failed"),
    # Not 408: the request itself was complete.
    Failure.DEADLINE: (504, "deadline_exceeded"),
    None: (500, "generation_failed"),
}


def failure_error(failure: Failure | None, message: str) -> ApiError:
    """None where the request's own row failed."""
    status, code = _FAILURES[failure]
    param = "deadline_ms" if failure is Failure.DEADLINE else None
    return ApiError(status, message, param=param, code=code, close=failure is Failure.SHUTDOWN)


def shutting_down() -> ApiError:
    """Status 503 while the server drains; closes the connection."""
    return failure_error(Failure.SHUTDOWN, "the server is shutting down")


def error_body(error: ApiError) -> ErrorBody:
    kind, code = STATUSES.get(error.status, STATUSES[500 if error.status >= 500 else 400])
    return ErrorBody(ErrorDetail(error.message, kind, error.param, error.code or code))


@contextmanager
def reword_errors(names: Mapping[str, str], words: Mapping[str, str]) -> Iterator[None]:
    """Rename a chat's fields by `names`, and other `words`, in an ApiError."""
    try:
        yield
    except ApiError as error:
        message, param = error.message, error.param
        for word, own in words.items():
            message = message.replace(word, own)
        if param is not None and param in names:
            # The name leads; elsewhere it may be an ordinary word.
            message, param = message.replace(param, names[param], -1 if "_" in param else 1), names[param]
        raise replace(error, message=message, param=param) from None


def error_response(
    error: ApiError, headers: Mapping[str, str] | None = None, body: msgspec.Struct | None = None
) -> web.Response:
    """In OpenAI's form unless it has a `body`."""
    response = web.Response(
        body=encode(body or error_body(error)),
        status=error.status,
        content_type="application/json",
        headers={**error.headers, **(headers or {})},
    )
    if error.close:
        response.force_close()
    return response


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware: every failure becomes an error object of the operation's dialect."""
    try:
        return await handler(request)
    except ApiError as failure:
        error = failure
        note_code(request, error)
    except web.HTTPException as failure:
        error = _from_http(request, failure)
    except (web.RequestPayloadError, HttpProcessingError):
        error = ApiError(400, "the request's body cannot be read: its encoding is broken", close=True)
    except ConnectionError:
        # The client is gone; raising would log a traceback.
        error = ApiError(400, "the client closed the connection", close=True)
    except Exception as failure:
        if is_disk_full(failure):
            log.error("request %s failed: %s", request_id(request), failure)
            error = ApiError(507, "the disk of the server is full; try again later, or delete files", close=True)
        else:
            log.exception("request %s failed", request_id(request))
            error = internal_error(request_id(request))
    known = (one for one in request.app[BY_HANDLER].values() if request.path.startswith(one.path))
    dialect = request[OPERATION].dialect or next((one.dialect for one in known if one.dialect), None)
    return error_response(error, body=None if dialect is None else dialect.word(error, request_id(request)))


def stream_error(failure: Exception, request: web.Request) -> ApiError:
    """An unforeseen one is logged."""
    if isinstance(failure, ApiError):
        note_code(request, failure)
        return failure
    log.exception("request %s failed in its stream", request_id(request))
    return internal_error(request_id(request))


def note_code(request: web.Request, error: ApiError) -> None:
    request[_CODE] = error_body(error).error.code


def error_code(request: web.Request) -> str | None:
    return request.get(_CODE)


def is_refused(request: web.Request, status: int) -> bool:
    """Nothing ran, so the call counts in no quota of requests, and is paced."""
    return status in PACED or error_code(request) in UNSERVED


def internal_error(name: str) -> ApiError:
    """Status 500 without the cause, which may hold addresses and paths; `name` is the request's id."""
    return ApiError(500, f"internal error; the server's log tells more under the request id {name}")


OTHERS: Mapping[str, str] = {
    "/api/chat": "/v1/chat/completions",
    "/api/generate": "/v1/completions",
    "/completion": "/v1/completions",
    "/generate": "/v1/completions",
    "/api/tags": "/v1/models",
    "/api/embed": "/v1/embeddings",
    "/embedding": "/v1/embeddings",
}  # paths of Ollama, llama.cpp and TGI -> ours


def _find_elsewhere(request: web.Request, known: Iterable[str]) -> str:
    path = request.path.rstrip("/")
    wanted = OTHERS.get(path, "/v1" + re.sub("^(/v1)+(?=/)", "", path))
    return suggest(wanted, known, cutoff=0.85) or "; GET / lists the endpoints"


def _from_http(request: web.Request, error: web.HTTPException) -> ApiError:
    match error:
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            message = f"{request.method!r} is not allowed here; use {allowed}"
            return ApiError(405, message, headers={"Allow": error.headers["Allow"]})
        case web.HTTPNotFound():
            there = _find_elsewhere(request, [one.canonical for one in request.app.router.resources()])
            return ApiError(404, f"there is nothing at {request.rel_url.raw_path!r}{there}")
        case web.HTTPRequestEntityTooLarge():
            return ApiError(413, "the request's body is too large; shorten it", close=True)
        case _:
            return ApiError(error.status, error.reason)
