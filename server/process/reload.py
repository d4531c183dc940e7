"""SIGHUP: keys and certificate are read anew, while connections and requests go on."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from server.cli.config import ConfigError, ServeConfig
from server.http.front import Front, reread

log = logging.getLogger(__name__)


@contextmanager
def reload_on_hangup(front: Front, config: ServeConfig, environ: Mapping[str, str]) -> Iterator[None]:
    """Read keys and certificate anew at each SIGHUP; where they cannot be used, those from before stay.

    On a terminal SIGHUP ends the process, as ever: it means that the terminal is gone. Event loop's thread only.
    """
    if os.isatty(0):
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, _reload, front, config, environ)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def _reload(front: Front, config: ServeConfig, environ: Mapping[str, str]) -> None:
    try:
        reread(front, config, environ)
    except ConfigError as error:
        log.error("SIGHUP: keys and certificate stay as they were: %s", error)
    else:
        certificate = "no certificate" if front.tls is None else "the certificate"
        log.info("SIGHUP: read %d keys and %s anew", len(front.access.keys), certificate)
