"""Forwarded and hop-by-hop headers (RFC 9110, 7.6.1)."""

import re
from collections.abc import Iterable, Mapping, Sequence

HOPS = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "upgrade", "content-length", "expect", "te", "trailer"}
)  # hop-by-hop, and the body's length

PROXYS = frozenset({"date", "server", "x-request-id"})  # set by the proxy in answers

# set by the proxy in requests
REWRITTEN = frozenset(
    ("host", "accept-encoding", "content-encoding", "x-rewrite-url", "x-method-override", "http2-settings")
    + ("x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "cf-connecting-ip")
    + ("remote-user", "x-remote-user", "x-lengthwise-progress", "x-lengthwise-promise")
)

PREFIXES = ("proxy-", "forwarded", "x-forwarded", "x-original-", "x-http-method")
KEYS = frozenset({"authorization", "x-api-key", "api-key"})

BROKEN = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")  # control characters, and invalid UTF-8


def is_broken(headers: Iterable[tuple[str, str]]) -> bool:
    return any(BROKEN.search(value) for _, value in headers)


def without(headers: Iterable[tuple[str, str]], names: frozenset[str]) -> list[tuple[str, str]]:
    """Also without those that Connection names; `names` in lower case."""
    given = [(name, value, name.lower().replace("_", "-")) for name, value in headers]
    named = {one.strip().lower() for _, value, low in given if low == "connection" for one in value.split(",")}
    left = [(name, value, low) for name, value, low in given if low not in names and low not in named]
    return [(name, value) for name, value, low in left if not low.startswith(PREFIXES)]


def passed_headers(
    headers: Iterable[tuple[str, str]], key: str | None, *, client_keys: bool = False
) -> list[tuple[str, str]]:
    """With the backend's key, or the client's where allowed."""
    passed = without(headers, HOPS | REWRITTEN | (KEYS if key is not None or not client_keys else frozenset()))
    if key is not None:
        passed.append(("Authorization", f"Bearer {key}"))
    return [*passed, ("Accept-Encoding", "identity")]


def replied_headers(headers: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    return without(headers.items(), HOPS | PROXYS)
