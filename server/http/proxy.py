"""Headers that a proxy passes on, and those that are each connection's own (RFC 9110, 7.6.1)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

HOPS = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "upgrade", "content-length", "expect", "te", "trailer"}
)
"""Headers of one connection, which the next has its own of; a body's length is known anew."""

PROXYS = frozenset({"date", "server", "x-request-id"})
"""Headers of an answer that the proxy gives it, the id from the request."""

REWRITTEN = frozenset({"host", "accept-encoding", "content-encoding", "forwarded", "x-real-ip"})
"""Headers of a request that a proxy which reads bodies and answers writes anew."""

KEYS = frozenset({"authorization", "x-api-key", "api-key"})

BROKEN = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")  # control characters, and bytes that are no UTF-8


def is_broken(headers: Mapping[str, str]) -> bool:
    """Whether headers cannot be passed on as they are."""
    return any(BROKEN.search(value) for value in headers.values())


def without(headers: Iterable[tuple[str, str]], names: frozenset[str]) -> list[tuple[str, str]]:
    """Headers but for those of these names, which are in small letters, those that a Connection header names, and those
    of proxies."""
    given = [(name, value, name.lower().replace("_", "-")) for name, value in headers]
    named = {one.strip().lower() for _, value, low in given if low == "connection" for one in value.split(",")}
    left = [(name, value, low) for name, value, low in given if low not in names and low not in named]
    return [(name, value) for name, value, low in left if not low.startswith(("proxy-", "x-forwarded-"))]


def passed_headers(headers: Mapping[str, str], key: str | None, *, client_keys: bool = False) -> list[tuple[str, str]]:
    """Headers of a request for a backend, with the backend's own key where there is one, else the client's where those
    are passed."""
    passed = without(headers.items(), HOPS | REWRITTEN | (KEYS if key is not None or not client_keys else frozenset()))
    if key is not None:
        passed.append(("Authorization", f"Bearer {key}"))
    return [*passed, ("Accept-Encoding", "identity")]


def replied_headers(headers: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    """Headers of a backend's answer for the client."""
    return without(headers.items(), HOPS | PROXYS)
