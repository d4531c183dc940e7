"""Headers that a proxy passes on, and those that are each connection's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

HOPS = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade", "content-length", "expect"})
"""Headers of one connection, which the next has its own of; a body's length is known anew."""

PROXYS = frozenset({"date", "server", "x-request-id"})
"""Headers of an answer that the proxy gives it, the id from the request."""

REWRITTEN = frozenset({"host", "accept-encoding", "content-encoding"})
"""Headers of a request that a proxy which reads bodies and answers writes anew."""


def without(headers: Iterable[tuple[str, str]], names: frozenset[str]) -> list[tuple[str, str]]:
    """Headers but for those of these names, which are in small letters."""
    return [(name, value) for name, value in headers if name.lower() not in names]


def passed_headers(headers: Mapping[str, str], key: str | None) -> Sequence[tuple[str, str]]:
    """Headers of a request for a backend, with the backend's own key where there is one."""
    passed = without(headers.items(), HOPS | REWRITTEN)
    if key is not None:
        passed = [*without(passed, frozenset({"authorization", "x-api-key"})), ("Authorization", f"Bearer {key}")]
    return [*passed, ("Accept-Encoding", "identity")]


def replied_headers(headers: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    """Headers of a backend's answer for the client."""
    return without(headers.items(), HOPS | PROXYS)
