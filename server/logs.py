"""Where log lines go and how they look; and that broken requests cannot flood them."""

from __future__ import annotations

import logging
import sys

from aiohttp.http_exceptions import HttpProcessingError

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure(level: str) -> None:
    """Log to standard error from `level` on."""
    logging.basicConfig(stream=sys.stderr, level=level.upper(), format=FORMAT)
    logging.getLogger("aiohttp.server").addFilter(quiet_broken_requests)


def quiet_broken_requests(record: logging.LogRecord) -> bool:
    """Drop what aiohttp logs, a traceback each, for bytes that are not HTTP: anybody can send those at any rate."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)
