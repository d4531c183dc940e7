"""The listening address, taken before the model is loaded."""

import errno
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from models.errors import UserError


def taken(host: str, port: int, path: Path | None) -> AbstractContextManager[socket.socket]:
    """Raises UserError."""
    return take_port(host, port) if path is None else take_path(path)


@contextmanager
def take_port(host: str, port: int) -> Iterator[socket.socket]:
    """Bound, not listening; raises UserError."""
    family, address = _resolve(host, port)
    with socket.socket(family, socket.SOCK_STREAM) as taken:
        # lingering connections must not block a successor
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(address)
        except OSError as error:
            raise UserError(explain(error, host, port)) from None
        yield taken


@contextmanager
def take_path(path: Path) -> Iterator[socket.socket]:
    """Bound under a provisional name until `publish`; removed afterwards. Raises UserError."""
    _require_vacant(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as taken:
        try:
            taken.bind(os.fspath(_provisional(path)))
        except OSError as error:
            raise UserError(f"--uds {path} cannot be taken: {error.strerror or error}") from None
        inode = _provisional(path).stat().st_ino
        try:
            yield taken
        finally:
            for name in (_provisional(path), path):
                with suppress(FileNotFoundError):
                    if name.stat().st_ino == inode:  # else it is another server's
                        name.unlink()


def publish(path: Path, mode: str | None = None) -> None:
    """Atomically, with this octal mode. Raises UserError when another server was faster."""
    _require_vacant(path)
    if mode is not None:
        _provisional(path).chmod(int(mode, 8))
    _provisional(path).rename(path)


def unpublish(path: Path) -> None:
    _provisional(path).unlink(missing_ok=True)


def _provisional(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}")


def _require_vacant(path: Path) -> None:
    """Raise UserError where a server listens; stale sockets may be replaced."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UserError(f"--uds {path} is there and no socket: remove it, or choose another path")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(os.fspath(path))
    except (FileNotFoundError, ConnectionRefusedError):
        return
    except OSError as error:
        raise UserError(f"--uds {path} cannot be taken: {error.strerror or error}") from None
    raise UserError(f"--uds {path} is already in use: end what listens there, or choose another path")


def address_of(taken: socket.socket, scheme: str) -> str:
    host, number = taken.getsockname()[:2]
    return f"{scheme}://[{host}]:{number}" if ":" in host else f"{scheme}://{host}:{number}"


def is_public(taken: socket.socket) -> bool:
    """Whether other machines may reach it."""
    return taken.family != socket.AF_UNIX and not _is_loopback(taken.getsockname()[0])


def is_loopback(host: str) -> bool:
    """Raises UserError."""
    _, address = _resolve(host, 0)
    return _is_loopback(address[0])


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError):
        raise UserError(f"--host {host!r} is no address of this machine; use 127.0.0.1 or 0.0.0.0") from None
    return family, address


def explain(error: OSError, host: str, port: int) -> str:
    """Cause and remedy of a failed bind or listen."""
    in_use = f"port {port} is already in use on {host}: end what listens there, or choose another with --port"
    known = {
        errno.EADDRINUSE: in_use,
        errno.EACCES: f"port {port} needs more rights: choose one from 1024 on with --port",
        errno.EADDRNOTAVAIL: f"--host {host!r} is no address of this machine; use 127.0.0.1 or 0.0.0.0",
    }
    return known.get(error.errno or 0, f"cannot take port {port} on {host}: {error.strerror}")
