"""Access to the API: a key on every operation that is not open, where keys are set, and the quota of each key.

The holder of a key is noted on the request, for all who keep clients apart.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256

from aiohttp import web
from aiohttp.typedefs import Handler

from server.api.errors import ApiError, bad_request, busy
from server.api.generator import DISPATCHER
from server.api.operation import operation_of
from server.http.keys import Keyring, NeverAllowed, Quota, QuotaExceeded, Share

HOLDER = web.RequestKey("holder", str)

ALL = "everybody"
"""Holder of all requests where no keys are set."""


@dataclass(frozen=True, slots=True)
class Access:
    """The keys, and the quota of each."""

    keys: Keyring = field(default_factory=Keyring)
    quota: Quota = field(default_factory=Quota)


ACCESS = web.AppKey("access", Access)


def holder_of(request: web.Request) -> str | None:
    """The name of the API key that a request came with; None where no keys are set, or before one was checked."""
    holder = request.get(HOLDER)
    return None if holder == ALL else holder


def sender_of(request: web.Request) -> str:
    """The name of the API key that a request came with, else the address that it came from."""
    return holder_of(request) or request.remote or ""


def client_of(request: web.Request, user: str | None) -> str:
    """The client between whom and others service is shared out: its API key, else its address, and behind a slash who
    it says that it is in the body's `user`. Names are those of keys, or hashes, since metrics and the dashboard show
    them; empty where nothing tells clients apart.
    """
    holder = holder_of(request)
    if holder is not None:
        return holder
    address = f"address-{_hash(request.remote)}" if request.remote else ""
    return f"{address}/user-{_hash(user)}" if user else address


def _hash(name: str) -> str:
    return sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:8]


@web.middleware
async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer 401 to a call that brings no key of ours."""
    keys = request.app[ACCESS].keys
    if not len(keys):
        request[HOLDER] = ALL
    elif not _is_open(request):
        request[HOLDER] = check_key(keys, request.headers)
    return await handler(request)


def enter_in_background(app: web.Application, holder: str | None) -> Share | None:
    """The share of a request that no client waits for, for `Quota.leave`; None while its holder has too little left."""
    with suppress(QuotaExceeded):
        return app[ACCESS].quota.enter(holder or ALL, app[DISPATCHER].now(), app[ACCESS].quota.background)
    return None


def share_answers(app: web.Application, share: Share, answers: int) -> None:
    """Count a request as the answers that it asks for; raises ApiError 400 or 429."""
    with quota_errors():
        app[ACCESS].quota.count_answers(share, answers)


def spend_tokens(app: web.Application, holder: str | None, tokens: int) -> None:
    """Count tokens that were read or made for a holder of a key; None where no keys are set."""
    app[ACCESS].quota.spend(holder or ALL, tokens, app[DISPATCHER].now())


@contextmanager
def quota_errors() -> Iterator[None]:
    """Word what a quota refuses as the client's error: ApiError 400 or 429."""
    try:
        yield
    except QuotaExceeded as error:
        raise busy(f"{error}; try again later", "rate_limit_exceeded", error.retry_after) from None
    except NeverAllowed as error:
        raise bad_request(f"n: {error}; ask for fewer", "n") from None


def _is_open(request: web.Request) -> bool:
    operation = operation_of(request)
    return operation is not None and operation.open


def check_key(keys: Keyring, headers: Mapping[str, str]) -> str:
    """The holder of the key that a request brings; raises ApiError 401 where it is none of these."""
    holder = keys.holder(_read_key(headers))
    if holder is None:
        raise _unauthorized(headers)
    return holder


def _read_key(headers: Mapping[str, str]) -> str:
    """The key that a request brings; empty for none.

    As a bearer token, as the password of the basic scheme, which is what browsers ask their users for, or in
    x-api-key, where Anthropic's clients put it.
    """
    scheme, _, rest = headers.get("Authorization", "").partition(" ")
    match scheme.lower():
        case "bearer":
            return rest.strip()
        case "basic":
            return _password(rest.strip())
    return headers.get("x-api-key", "")


def _password(encoded: str) -> str:
    try:
        return base64.b64decode(encoded, validate=True).decode("utf-8").partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


def _unauthorized(headers: Mapping[str, str]) -> ApiError:
    """Browsers that ask for a page are told that they may ask their user; programs get no such question."""
    message = "this server wants a key of its own: send it as `Authorization: Bearer KEY`"
    if "Authorization" in headers:
        message = "the API key is not one of this server's"
    challenge = 'Bearer realm="Lengthwise"'
    if "text/html" in headers.get("Accept", ""):
        challenge = 'Basic realm="Lengthwise: the API key as password", charset="UTF-8"'
    return ApiError(401, message, headers={"WWW-Authenticate": challenge})
