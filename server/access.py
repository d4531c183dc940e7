"""API keys, where set, and their quotas; the holder is noted on the request."""

import base64
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256

from aiohttp import web

from server.api.errors import ApiError, bad_request, busy
from server.api.served_model import DISPATCHER
from server.front_settings import Admission
from server.keys import Keyring

HOLDER = web.RequestKey("holder", str)

ALL = "everybody"  # without keys


LIMITED = ("requests_per_minute", "max_concurrent_requests", "tokens_per_minute")  # settings of quotas

WINDOW = 60.0  # seconds

RETRY_AFTER = 1.0  # seconds, for concurrency limits


@dataclass(slots=True)
class _Window:
    """Counts of the last WINDOW seconds."""

    counted: deque[tuple[float, int]] = field(default_factory=deque)
    total: int = 0

    def add(self, amount: int, now: float) -> None:
        self.counted.append((now, amount))
        self.total += amount

    def wait(self, most: int, now: float) -> float:
        """Seconds until below `most`."""
        while self.counted and self.counted[0][0] <= now - WINDOW:
            self.total -= self.counted.popleft()[1]
        left = self.total
        for when, amount in self.counted if left >= most else ():
            left -= amount
            if left < most:
                return when + WINDOW - now
        return 0.0


@dataclass(slots=True)
class _Use:
    arrivals: _Window = field(default_factory=_Window)
    tokens: _Window = field(default_factory=_Window)
    under_way: int = 0


@dataclass(slots=True)
class Share:
    """Of a quota, of one request."""

    holder: str
    limits: Admission
    arrived: float
    answers: int = 1


class Quota:
    """Exact, so memory is bounded by a minute's admissions."""

    def __init__(self, limits: Admission) -> None:
        self.interactive = limits
        halves = {name: max(1, limit // 2) for name in LIMITED if (limit := getattr(limits, name))}
        self.background = replace(limits, **halves)  # of batch lines: half
        self._uses: defaultdict[str, _Use] = defaultdict(_Use)

    def enter(self, holder: str, now: float, limits: Admission | None = None) -> Share:
        """Within `interactive` unless others are given. Raises ApiError 429; refusals do not count."""
        use, limits = self._uses[holder], limits or self.interactive
        if limits.max_concurrent_requests is not None:
            self._check_concurrent(use, limits, 1)
        # Tokens are counted afterwards, so one request may exceed the quota.
        if (most := limits.tokens_per_minute) is not None and (wait := use.tokens.wait(most, now)):
            raise _exceeded(f"{use.tokens.total} tokens in a minute, of {most}", wait)
        if (most := limits.requests_per_minute) is not None:
            if wait := use.arrivals.wait(most, now):
                raise _exceeded(f"{most} requests in a minute", wait)
            use.arrivals.add(1, now)
        use.under_way += 1
        return Share(holder, limits, now)

    def count_answers(self, share: Share, answers: int) -> None:
        """One at least. Raises ApiError 429, releasing all, or 400 beyond the key's limit."""
        most = self.interactive.max_concurrent_requests
        if most is not None and answers > most:
            message = f"{answers} answers are more than the {most} that may be under way at a time"
            raise bad_request(f"n: {message}; ask for fewer", "n")
        if answers == share.answers:
            return
        use = self._uses[share.holder]
        self.leave(share)
        self._check_concurrent(use, share.limits, answers)
        use.under_way += answers
        share.answers = answers

    def spend(self, holder: str, tokens: int, now: float) -> None:
        """Prompt and generated."""
        if self.interactive.tokens_per_minute is not None and tokens:
            self._uses[holder].tokens.add(tokens, now)

    def forgive(self, share: Share) -> None:
        """Its request no longer counts."""
        arrivals = self._uses[share.holder].arrivals
        if (entry := (share.arrived, 1)) in arrivals.counted:
            arrivals.counted.remove(entry)
            arrivals.total -= 1

    def leave(self, share: Share) -> None:
        self._uses[share.holder].under_way -= share.answers
        share.answers = 0

    def _check_concurrent(self, use: _Use, limits: Admission, answers: int) -> None:
        most = (limits if use.under_way else self.interactive).max_concurrent_requests
        if most is not None and use.under_way + answers > most:
            raise _exceeded(f"{use.under_way} answers are under way, and {most} may be at a time", RETRY_AFTER)


def _exceeded(message: str, retry_after: float) -> ApiError:
    return busy(f"the quota is used up: {message}; try again later", "rate_limit_exceeded", retry_after)


@dataclass(frozen=True, slots=True)
class Access:
    keys: Keyring = field(default_factory=Keyring)
    quota: Quota = field(default_factory=lambda: Quota(Admission()))


ACCESS = web.AppKey("access", Access)


def holder_of(request: web.Request) -> str | None:
    """None without keys, or before the check."""
    return request.get(HOLDER)


def client_of(request: web.Request, user: str | None) -> str:
    """For fair sharing: API key, else address, then slash and the body's `user`; hashed, since metrics show them."""
    if HOLDER in request:
        return request[HOLDER]
    address, asked = (
        f"{kind}-{sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}" if name else ""
        for kind, name in (("address", request.remote), ("user", user))
    )
    return f"{address}/{asked}" if asked else address


def spend_tokens(app: web.Application, holder: str | None, tokens: int) -> None:
    app[ACCESS].quota.spend(holder or ALL, tokens, app[DISPATCHER].now())


def check_key(keys: Keyring, headers: Mapping[str, str]) -> str:
    """Raises ApiError 401."""
    if (holder := keys.holder(read_key(headers))) is not None:
        return holder
    message = "this server wants a key of its own: send it as `Authorization: Bearer KEY`"
    if read_key(headers) or "Authorization" in headers:
        message = "the API key is not one of this server's"
    challenge = 'Bearer realm="Lengthwise"'
    if "text/html" in headers.get("Accept", ""):
        challenge = 'Basic realm="Lengthwise: the API key as password", charset="UTF-8"'
    raise ApiError(401, message, headers={"WWW-Authenticate": challenge})


def read_key(headers: Mapping[str, str]) -> str:
    """From a bearer token, basic password (browsers) or x-api-key (Anthropic's clients); empty if absent."""
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
    except ValueError:
        return ""
