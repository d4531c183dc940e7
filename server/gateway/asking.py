"""What reaches a backend: an unambiguous path, headers, key and salt."""

import asyncio
import re
from collections.abc import Callable
from io import BytesIO
from typing import Any, TypeVar

import aiohttp
from aiohttp import web
from yarl import URL

from server.access import ACCESS, holder_of, read_key
from server.api.errors import ApiError
from server.api.input.body import LARGE, check_parts, parse
from server.api.operation import OPERATION
from server.config import Backends
from server.gateway.backend import Backend
from server.gateway.merged import PATHS
from server.gateway.meta import find_kept, refuse_unreadable, salted
from server.http.proxy import is_broken, passed_headers
from server.request_id import HEADER, request_id

SALTED = PATHS | {"/v1/responses"}  # bodies may have a `cache_salt`

# paths with one reading
PLAIN_PATH = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~!$&'()*+,:@=-]+)+")
UNTYPED = frozenset({"application/octet-stream", "application/x-www-form-urlencoded"})  # none, and what curl -d sends
WORDS = re.compile(r"[\s=:;,&?\"']+")  # between words of a header
SESSION = web.AppKey("session", aiohttp.ClientSession)
BACKENDS = web.AppKey("backends", Backends)

T = TypeVar("T")


async def read_aside(work: Callable[..., T], body: bytes, *args: object) -> T:
    """Large bodies in a thread."""
    return await asyncio.to_thread(work, body, *args) if len(body) >= LARGE else work(body, *args)


def are_one(app: web.Application) -> bool:
    """Whether backends take several keys for one client."""
    return len(app[ACCESS].keys) > 1 and not app[BACKENDS].pass_client_keys


def refuse_kept(what: str) -> ApiError:
    """Status 403 for what could reach another key's data at a backend."""
    message = "backends keep this for all keys of this gateway together; send the whole conversation with each call"
    return ApiError(403, f"{what}: {message} (or --pass-client-keys)", param=what, code="not_kept_apart")


def check_body(body: bytes, request: web.Request) -> dict[str, Any] | None:
    """Returns what it decoded; forms with files are no JSON. Raises ApiError 400 and 403."""
    if not body or body.startswith(b"--"):
        return None
    if not are_one(request.app):
        if len(body) >= LARGE and not request[OPERATION].generates:  # else parsed soon
            check_parts(body)
        return None
    fields = parse(body, dict[str, Any])
    with refuse_unreadable(body):
        if name := find_kept(fields):
            raise refuse_kept(name)
    return fields


async def ask(request: web.Request, body: bytes, backend: Backend, reused: list[bool]) -> aiohttp.ClientResponse:
    """Returns the headers; `reused` is filled where the connection was. Raises aiohttp.ClientError, and ApiError
    400."""
    app, path, query = request.app, plain_path(request), request.rel_url.raw_query_string
    given = [(name, request_id(request) if name.lower() == HEADER else one) for name, one in request.headers.items()]
    if is_broken(given):
        raise ApiError(400, "headers may hold no control characters, and nothing but UTF-8")
    if backend.salts and len(app[ACCESS].keys) > 1 and path in SALTED:
        body = await read_aside(salted, body, holder_of(request))
    own = app[BACKENDS].pass_client_keys or not len(app[ACCESS].keys)
    secret = "" if own else read_key(request.headers)
    if secret and secret in request.query.values():
        raise ApiError(400, "a key in the query would reach the backend; send it as `Authorization: Bearer KEY`")
    given = [one for one in given if not (secret and secret in WORDS.split(one[1]))]
    headers = passed_headers(given, backend.key, client_keys=own)
    if body.startswith(b"{") and request.content_type in UNTYPED:
        headers = [(name, value) for name, value in headers if name.lower() != "content-type"]
        headers.append(("Content-Type", "application/json"))
    headers += [("X-Forwarded-For", request.remote or "unknown"), ("X-Forwarded-Proto", request.scheme)]
    base = backend.url if path.startswith("/v1/") else backend.url.removesuffix("/v1")
    url = URL(base + path.removeprefix("/v1") + f"?{query}" * bool(query), encoded=True)
    data = BytesIO(body) if len(body) >= LARGE else body or None  # in pieces
    answer = await app[SESSION].request(
        request.method, url, headers=headers, allow_redirects=False, data=data, trace_request_ctx=reused
    )
    if answer.status != 304 and not 200 <= answer.status < 300 and not 400 <= answer.status < 600:
        fault = f"answers {answer.status}, which is not followed"
    elif is_broken(answer.headers.items()):
        fault = "answers with headers that cannot be passed on"
    else:
        return answer
    answer.close()
    raise aiohttp.ClientPayloadError(fault)


def plain_path(request: web.Request) -> str:
    """Decoded; raises ApiError 400 if ambiguous."""
    path, matched = request.rel_url.path, request.rel_url.path_safe
    if matched.startswith("/v1/models/"):
        matched = matched.replace("%2F", "/")  # hub ids contain one
    if path != matched or not PLAIN_PATH.fullmatch(path) or not request.rel_url.raw_query_string.isascii():
        message = "write it without empty, . or .. segments, and without escapes, backslashes or semicolons"
        raise ApiError(400, f"the path {request.rel_url.raw_path!r} has several readings: {message}")
    return path
