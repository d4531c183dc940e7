"""Access to the API: a key on every operation that is not open, where keys are set, and the quota of each key.

The holder of a key is noted on the request, for all who keep clients apart.
"""

from __future__ import annotations

import base64
import binascii
from collections import defaultdict, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from hashlib import sha256

from aiohttp import web
from aiohttp.typedefs import Handler

from server.api.errors import ApiError, bad_request, busy
from server.api.generator import DISPATCHER
from server.api.operation import operation_of
from server.http.keys import Keyring

HOLDER = web.RequestKey("holder", str)

ALL = "everybody"
"""Holder of all requests where no keys are set."""


WINDOW = 60.0
"""Seconds in which arrivals are counted."""

RETRY_AFTER = 1.0
"""Seconds after which one who has too many requests under way may try again: when one of them ends is unknown."""


@dataclass(slots=True)
class _Use:
    arrivals: deque[float] = field(default_factory=deque)
    spent: deque[tuple[float, int]] = field(default_factory=deque)
    """Tokens, with the time at which they were counted."""
    tokens: int = 0
    """Sum of the tokens in `spent`."""
    under_way: int = 0


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """How much a holder may ask for; None for no bound."""

    requests_per_minute: int | None
    concurrent: int | None
    tokens_per_minute: int | None

    def halve(self) -> QuotaLimits:
        """Half of each, at least 1."""
        return QuotaLimits(*(limit and max(1, limit // 2) for limit in astuple(self)))


@dataclass(slots=True)
class Share:
    """The part of a holder's quota that one request has."""

    holder: str
    limits: QuotaLimits
    answers: int = 0


class Quota:
    """Counts exactly, so its memory is bounded by what it lets through in a minute."""

    def __init__(
        self,
        requests_per_minute: int | None = None,
        max_concurrent: int | None = None,
        tokens_per_minute: int | None = None,
    ) -> None:
        self.interactive = QuotaLimits(requests_per_minute, max_concurrent, tokens_per_minute)
        """Limits of requests that a client waits for."""
        self.background = self.interactive.halve()
        """Limits of lines of batches, which so leave half to their holder's other requests."""
        self._uses: defaultdict[str, _Use] = defaultdict(_Use)

    def enter(self, holder: str, now: float, limits: QuotaLimits | None = None) -> Share:
        """A request begins, within `interactive` unless other limits are given. Raises ApiError 429; one that is
        refused counts for nothing.
        """
        use, share = self._uses[holder], Share(holder, limits or self.interactive)
        self._check_concurrent(use, share.limits, 1)
        self._check_tokens(use, share.limits.tokens_per_minute, now)
        self._count(use, share.limits.requests_per_minute, now)
        use.under_way += 1
        share.answers = 1
        return share

    def count_answers(self, share: Share, answers: int) -> None:
        """Count all answers that a call asks for, one at least. Raises ApiError 429, after which it has none, or
        400 where its key may have so many at no time.
        """
        most = self.interactive.concurrent
        if most is not None and answers > most:
            message = f"{answers} answers are more than the {most} that this key may have at a time"
            raise bad_request(f"n: {message}; ask for fewer", "n")
        if answers == share.answers:
            return
        use = self._uses[share.holder]
        self.leave(share)
        self._check_concurrent(use, share.limits, answers)
        use.under_way += answers
        share.answers = answers

    def spend(self, holder: str, tokens: int, now: float) -> None:
        """Count tokens that a request has read or made."""
        if self.interactive.tokens_per_minute is not None and tokens:
            use = self._uses[holder]
            use.spent.append((now, tokens))
            use.tokens += tokens

    def leave(self, share: Share) -> None:
        """A request that was let in is over."""
        self._uses[share.holder].under_way -= share.answers
        share.answers = 0

    def _check_concurrent(self, use: _Use, limits: QuotaLimits, answers: int) -> None:
        """A request with nothing beside it has the whole quota, whatever its own limits."""
        most = limits.concurrent if use.under_way else self.interactive.concurrent
        if most is not None and use.under_way + answers > most:
            message = f"{use.under_way} answers of this key are under way, and {most} may be at a time"
            raise _exceeded(message, RETRY_AFTER)

    def _check_tokens(self, use: _Use, most: int | None, now: float) -> None:
        """Tokens are known when they are spent, so the request that goes beyond the quota is the last for a while."""
        if most is None:
            return
        while use.spent and use.spent[0][0] <= now - WINDOW:
            use.tokens -= use.spent.popleft()[1]
        if use.tokens < most:
            return
        left = use.tokens
        for when, tokens in use.spent:
            left -= tokens
            if left < most:
                message = f"this key has used {use.tokens} tokens in a minute, and may use {most}"
                raise _exceeded(message, when + WINDOW - now)

    def _count(self, use: _Use, most: int | None, now: float) -> None:
        if most is None:
            return
        while use.arrivals and use.arrivals[0] <= now - WINDOW:
            use.arrivals.popleft()
        if len(use.arrivals) >= most:
            message = f"this key has made {most} requests in a minute, as many as it may"
            raise _exceeded(message, use.arrivals[0] + WINDOW - now)
        use.arrivals.append(now)


def _exceeded(message: str, retry_after: float) -> ApiError:
    return busy(f"{message}; try again later", "rate_limit_exceeded", retry_after)


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
    with suppress(ApiError):
        return app[ACCESS].quota.enter(holder or ALL, app[DISPATCHER].now(), app[ACCESS].quota.background)
    return None


def spend_tokens(app: web.Application, holder: str | None, tokens: int) -> None:
    """Count tokens that were read or made for a holder of a key; None where no keys are set."""
    app[ACCESS].quota.spend(holder or ALL, tokens, app[DISPATCHER].now())


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
