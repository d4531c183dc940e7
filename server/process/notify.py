"""Messages to a service manager (sd_notify(3)): ready, stopping, still well; none where it did not ask for them."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, MutableMapping

log = logging.getLogger(__name__)


class Notifier:
    """Datagrams to $NOTIFY_SOCKET; $WATCHDOG_USEC says how often it must hear that all is well."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Takes its variables out of the environment, so that no child process speaks in our name."""
        self._address = environ.pop("NOTIFY_SOCKET", "")
        owner, microseconds = environ.pop("WATCHDOG_PID", ""), environ.pop("WATCHDOG_USEC", "")
        ours = microseconds.isdecimal() and owner in ("", str(os.getpid()))
        self.watchdog_interval = int(microseconds) / 3_000_000 if ours else None
        """Seconds between two signs; None where no watchdog waits."""

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def stopping(self, status: str) -> None:
        self._send(f"STOPPING=1\nSTATUS={status}")

    def well(self) -> None:
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # A name that begins with @ is one of the abstract namespace.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.connect(address)
                channel.send(message.encode())
        except OSError as error:
            log.warning("the service manager cannot be told %r: %s", message.partition("\n")[0], error)


async def feed_watchdog(notifier: Notifier, healthy: Callable[[], bool]) -> None:
    """Tell the watchdog that all is well, as long as it is, until cancelled."""
    if notifier.watchdog_interval is None:
        return
    while True:
        if healthy():
            notifier.well()
        await asyncio.sleep(notifier.watchdog_interval)
