"""The client that a call is from, between whom service is shared out: its API key, else who it says that it is.

Names are those of keys, or hashes: neither the key nor what a client calls itself is shown anywhere.
"""

from __future__ import annotations

from hashlib import sha256

from aiohttp import web

from server.http.access import holder_of


def client_of(request: web.Request, user: str | None) -> str:
    """The client's name; empty where nothing tells clients apart. `user` is the body's field."""
    holder = holder_of(request)
    if holder is not None:
        return holder
    return f"user-{sha256(user.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}" if user else ""
