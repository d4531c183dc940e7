"""API keys: where they come from, and whose a presented one is. Only digests are kept, and no message shows a key.

The quota of each holder of a key: so many requests and tokens in any minute, and so many answers at a time.

It knows no HTTP; time is passed in.
"""

from __future__ import annotations

import logging
import math
import stat
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from types import MappingProxyType

from server.cli.settings import ConfigError

log = logging.getLogger(__name__)

CREDENTIAL = "api-keys"
"""Name of the systemd credential (LoadCredential=api-keys:FILE) that holds keys like --api-key-file."""

SHORT = 16
"""Characters below which a key can be guessed."""


class Keyring:
    """Keys that open the API; none: it is open to all."""

    def __init__(self, keys: Iterable[str] = (), weights: Mapping[str, float] = MappingProxyType({})) -> None:
        """`weights` are those of keys; 1 for all others."""
        given = {_digest(key): weights.get(key, 1.0) for key in keys}
        self._digests = tuple(given)
        self.shares = {_holder(digest): weight for digest, weight in given.items()}
        """Each holder's weight, where service is shared out."""

    def replace(self, other: Keyring) -> None:
        """Take the keys of another keyring in place of these."""
        self._digests, self.shares = other._digests, other.shares

    def __len__(self) -> int:
        return len(self._digests)

    def holder(self, presented: str) -> str | None:
        """The first digits of a key's digest, which name its holder; None for no key of ours. Takes as long for any."""
        digest = _digest(presented)
        found = [known for known in self._digests if compare_digest(digest, known)]
        return _holder(found[0]) if found else None


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def _holder(digest: bytes) -> str:
    return digest.hex()[:8]


def load_keys(given: Sequence[str], file: Path | None, environ: Mapping[str, str]) -> Keyring:
    """The keys of all sources together. Raises ConfigError, also where a source holds none."""
    keys = read_keys(given, file, environ)
    if file is not None:
        _warn_if_open(file)
    if any(len(key) < SHORT for key in keys):
        log.warning("an API key has fewer than %d characters: make keys with `openssl rand -hex 32`", SHORT)
    return Keyring(keys, keys)


def load_shares(given: Sequence[str], file: Path | None, environ: Mapping[str, str]) -> Mapping[str, float]:
    """The weights of all keys' holders. Raises ConfigError."""
    keys = read_keys(given, file, environ)
    return Keyring(keys, keys).shares


def read_keys(given: Sequence[str], file: Path | None, environ: Mapping[str, str]) -> dict[str, float]:
    """The keys of all sources, with their weights."""
    keys = {_check(key, "--api-key"): 1.0 for key in given}
    if file is not None:
        keys |= _from_file(file, f"--api-key-file {file}")
    folder = environ.get("CREDENTIALS_DIRECTORY")
    if folder and (credential := Path(folder) / CREDENTIAL).exists():
        keys |= _from_file(credential, f"the credential {CREDENTIAL}")
    return keys


def _from_file(file: Path, source: str) -> dict[str, float]:
    """A key a line, and behind it its weight if it has one; blank lines and those that begin with # are none."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source} cannot be read: {_reason(error)}") from None
    stripped = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    keys = dict(_read_line(line, f"{source}, line {number}") for number, line in stripped if line and line[0] != "#")
    if not keys:
        raise ConfigError(f"{source} holds no key: write one a line")
    return keys


def _read_line(line: str, source: str) -> tuple[str, float]:
    """A key and its weight."""
    key, *rest = line.split()
    try:
        weight = float(*rest) if rest else 1.0
    except (TypeError, ValueError):
        weight = math.nan
    if not 0 < weight < math.inf:
        raise ConfigError(f"{source}: behind a key may stand its weight, a number above 0, and nothing else")
    return _check(key, source), weight


def _reason(error: OSError | UnicodeDecodeError) -> str:
    """The reason without what was read, which may be a key."""
    return str(error.strerror) if isinstance(error, OSError) else "it is not UTF-8"


def _check(key: str, source: str) -> str:
    if not key or not all("!" <= character <= "~" for character in key):
        raise ConfigError(f"{source}: a key consists of printable ASCII characters, without spaces")
    return key


def _warn_if_open(file: Path) -> None:
    if file.stat().st_mode & stat.S_IROTH:
        log.warning("%s can be read by everybody on this machine: chmod 600 it", file)


WINDOW = 60.0
"""Seconds in which arrivals are counted."""

RETRY_AFTER = 1.0
"""Seconds after which one who has too many requests under way may try again: when one of them ends is unknown."""


class QuotaExceeded(Exception):
    """The message says which limit; `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NeverAllowed(Exception):
    """Raised for a request that asks for more than its key may have at any time. The message says which limit."""


@dataclass(slots=True)
class _Use:
    arrivals: deque[float] = field(default_factory=deque)
    spent: deque[tuple[float, int]] = field(default_factory=deque)
    """Tokens, with the time at which they were counted."""
    tokens: int = 0
    """Sum of the tokens in `spent`."""
    under_way: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a holder may ask for; None for no bound."""

    requests_per_minute: int | None
    concurrent: int | None
    tokens_per_minute: int | None

    def halve(self) -> Limits:
        """Half of each, at least 1."""
        return Limits(_half(self.requests_per_minute), _half(self.concurrent), _half(self.tokens_per_minute))


def _half(limit: int | None) -> int | None:
    return None if limit is None else max(1, limit // 2)


@dataclass(slots=True)
class Share:
    """The part of a holder's quota that one request has."""

    holder: str
    limits: Limits
    answers: int = 0


class Quota:
    """Counts exactly, so its memory is bounded by what it lets through in a minute."""

    def __init__(
        self,
        requests_per_minute: int | None = None,
        max_concurrent: int | None = None,
        tokens_per_minute: int | None = None,
    ) -> None:
        self.interactive = Limits(requests_per_minute, max_concurrent, tokens_per_minute)
        """Limits of requests that a client waits for."""
        self.background = self.interactive.halve()
        """Limits of lines of batches, which so leave half to their holder's other requests."""
        self._uses: defaultdict[str, _Use] = defaultdict(_Use)

    def enter(self, holder: str, now: float, limits: Limits | None = None) -> Share:
        """A request begins, within `interactive` unless other limits are given. Raises QuotaExceeded; one that is
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
        """Count all answers that a call asks for, one at least. Raises QuotaExceeded, after which it has none, or
        NeverAllowed.
        """
        most = self.interactive.concurrent
        if most is not None and answers > most:
            raise NeverAllowed(f"{answers} answers are more than the {most} that this key may have at a time")
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

    def _check_concurrent(self, use: _Use, limits: Limits, answers: int) -> None:
        """A request with nothing beside it has the whole quota, whatever its own limits."""
        most = limits.concurrent if use.under_way else self.interactive.concurrent
        if most is not None and use.under_way + answers > most:
            message = f"{use.under_way} answers of this key are under way, and {most} may be at a time"
            raise QuotaExceeded(message, RETRY_AFTER)

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
                raise QuotaExceeded(message, when + WINDOW - now)

    def _count(self, use: _Use, most: int | None, now: float) -> None:
        if most is None:
            return
        while use.arrivals and use.arrivals[0] <= now - WINDOW:
            use.arrivals.popleft()
        if len(use.arrivals) >= most:
            message = f"this key has made {most} requests in a minute, as many as it may"
            raise QuotaExceeded(message, use.arrivals[0] + WINDOW - now)
        use.arrivals.append(now)
