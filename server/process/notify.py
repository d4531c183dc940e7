"""sd_notify(3) messages to a service manager; none where it did not ask for them."""

import asyncio
import os
import socket
from collections.abc import Callable, MutableMapping

from server.process.watchdog import log


class Notifier:
    """Datagrams to $NOTIFY_SOCKET, at intervals by $WATCHDOG_USEC."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Removes its variables, so that no child process sends messages."""
        self._address = environ.pop("NOTIFY_SOCKET", "")
        owner, microseconds = environ.pop("WATCHDOG_PID", ""), environ.pop("WATCHDOG_USEC", "")
        ours = microseconds.isdecimal() and owner in ("", str(os.getpid()))
        # seconds between messages; None: no watchdog
        self.watchdog_interval = int(microseconds) / 3_000_000 if ours else None

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def stopping(self, status: str) -> None:
        self._send(f"STOPPING=1\nSTATUS={status}")

    def well(self) -> None:
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # an abstract socket
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.connect(address)
                channel.send(message.encode())
        except OSError as error:
            log.warning("the service manager cannot be told %r: %s", message.partition("\n")[0], error)


async def feed_watchdog(notifier: Notifier, healthy: Callable[[], bool]) -> None:
    """Until cancelled, while all is well."""
    if notifier.watchdog_interval is None:
        return
    while True:
        if healthy():
            notifier.well()
        await asyncio.sleep(notifier.watchdog_interval)
