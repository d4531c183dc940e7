"""The address a server listens on: taken before the model is loaded, with errors that name the remedy."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class PortError(Exception):
    """The address cannot be had; the message says why and what to do."""


@contextmanager
def take_port(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that is bound but does not listen yet; raises PortError."""
    family, address = _resolve(host, port)
    with socket.socket(family, socket.SOCK_STREAM) as taken:
        # Connections of a server that just ended must not keep its successor from starting.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(address)
        except OSError as error:
            raise PortError(explain(error, host, port)) from None
        yield taken


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError):
        raise PortError(f"--host {host!r} is no address of this machine; use 127.0.0.1 or 0.0.0.0") from None
    return family, address


def explain(error: OSError, host: str, port: int) -> str:
    """What a failed bind or listen means to the user."""
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} is already in use on {host}: end what listens there, or choose another with --port"
        case errno.EACCES:
            return f"port {port} needs more rights: choose one from 1024 on with --port"
        case errno.EADDRNOTAVAIL:
            return f"--host {host!r} is no address of this machine; use 127.0.0.1 or 0.0.0.0"
        case _:
            return f"cannot take port {port} on {host}: {error.strerror}"
