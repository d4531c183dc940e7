"""The client that a call is from, between whom service is shared out: its API key, else who it says that it is.

Names are those of keys, or hashes: neither the key nor what a client calls itself is shown anywhere.
"""

from __future__ import annotations

from hashlib import sha256

from aiohttp import web

from server.http.access import holder_of

FAIRNESS_HEADERS = ("x-gateway-inference-fairness-id", "x-llm-d-inference-fairness-id")
"""Headers in which the Gateway API's inference extension, and llm-d, name the flow that a request belongs to."""


def client_of(request: web.Request, user: str | None) -> str:
    """The client's name; empty where nothing tells clients apart. `user` is the body's field."""
    holder = holder_of(request)
    if holder is not None:
        return holder
    flow = next((request.headers[header] for header in FAIRNESS_HEADERS if request.headers.get(header)), None)
    name, kind = (flow, "flow") if flow else (user, "user")
    return f"{kind}-{sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}" if name else ""
