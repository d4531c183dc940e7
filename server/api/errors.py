"""What goes wrong, as the API says it: ApiError, its JSON body, and the middleware that gives every failure that body.

It knows no endpoint. What a client may read is written where the error is raised; anything unforeseen is logged
under the request's id and told as an internal error.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import ceil
from types import MappingProxyType

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from server.api.output.reply import encode
from server.http.request_id import request_id

log = logging.getLogger(__name__)

_CODE = web.RequestKey("error_code", str)

KINDS: Mapping[int, tuple[str, str]] = MappingProxyType(
    {
        400: ("BadRequestError", "invalid_request"),
        401: ("AuthenticationError", "invalid_api_key"),
        403: ("PermissionDeniedError", "forbidden"),
        404: ("NotFoundError", "not_found"),
        405: ("MethodNotAllowedError", "method_not_allowed"),
        408: ("RequestTimeoutError", "request_timeout"),
        413: ("PayloadTooLargeError", "body_too_large"),
        417: ("ExpectationFailedError", "expectation_failed"),
        421: ("MisdirectedRequestError", "misdirected_request"),
        429: ("RateLimitError", "rate_limit_exceeded"),
        499: ("RequestCancelledError", "request_cancelled"),
        500: ("InternalServerError", "internal_error"),
        503: ("ServiceUnavailableError", "unavailable"),
        504: ("DeadlineExceededError", "deadline_exceeded"),
    }
)
"""HTTP status -> the error's `type` and its usual `code`."""


class ApiError(Exception):
    """A failure that the client shall read: `message` says what to change, `param` names the field.

    `close` ends the connection after the answer, for when the rest of the request is not worth reading.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        close: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.close = close
        self.headers = headers or {}


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
    """Status 400: the request itself has to change."""
    return ApiError(400, message, param=param, code=code)


def busy(message: str, code: str, retry_after: float) -> ApiError:
    """Status 429: the same request can be served later, `retry_after` seconds from now.

    Told in whole seconds, 1 at least, as HTTP has it, and in milliseconds, which OpenAI's clients prefer.
    """
    headers = {"Retry-After": str(max(1, ceil(retry_after))), "retry-after-ms": str(max(1, ceil(retry_after * 1000)))}
    return ApiError(429, message, code=code, headers=headers)


def error_body(error: ApiError) -> ErrorBody:
    """The error as the client gets it, in a response or in a stream."""
    kind, code = KINDS.get(error.status, KINDS[500 if error.status >= 500 else 400])
    return ErrorBody(ErrorDetail(error.message, kind, error.param, error.code or code))


def error_response(error: ApiError, headers: Mapping[str, str] | None = None) -> web.Response:
    """The error as a whole HTTP response."""
    response = web.Response(
        body=encode(error_body(error)),
        status=error.status,
        content_type="application/json",
        headers={**error.headers, **(headers or {})},
    )
    if error.close:
        response.force_close()
    return response


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every failure of a handler with an OpenAI error object."""
    try:
        return await handler(request)
    except ApiError as error:
        request[_CODE] = error_body(error).error.code
        return error_response(error)
    except web.HTTPException as error:
        return error_response(_from_http(request, error), _allow(error))
    except (web.RequestPayloadError, HttpProcessingError):
        return error_response(ApiError(400, "the request's body cannot be read: its encoding is broken", close=True))
    except ConnectionError:
        # The client is gone, so this goes nowhere; to raise would make aiohttp log a traceback for each.
        return error_response(ApiError(400, "the client closed the connection", close=True))
    except Exception:
        log.exception("request %s failed", request_id(request))
        return error_response(internal_error(request))


def error_code(request: web.Request) -> str | None:
    """The code of the error that a request was answered with, for who logs and counts."""
    return request.get(_CODE)


def internal_error(request: web.Request) -> ApiError:
    """Status 500 with nothing of the cause in it: exception texts can hold addresses and paths."""
    return ApiError(500, f"internal error; the server's log tells more under the request id {request_id(request)}")


def _from_http(request: web.Request, error: web.HTTPException) -> ApiError:
    match error:
        case web.HTTPNotFound():
            return ApiError(404, f"there is nothing at {request.rel_url.raw_path!r}; GET / lists the endpoints")
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            return ApiError(405, f"{request.method!r} is not allowed here; use {allowed}")
        case web.HTTPRequestEntityTooLarge():
            return ApiError(413, "the request's body is too large; shorten it", close=True)
        case _:
            return ApiError(error.status, error.reason)


def _allow(error: web.HTTPException) -> Mapping[str, str] | None:
    """A 405 must say which methods are allowed."""
    return {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
