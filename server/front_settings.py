"""Settings of what stands before the scheduler: admission, access, listening, logs; the rest is in config.py."""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from models.options import Count, Natural, NonNegative, option


def _check(pattern: str, what: str, text: str) -> None:
    if not re.fullmatch(pattern, text):
        raise ValueError(f"{text!r} is no {what}")


_MODE = partial(_check, "0?[0-7]{3}", "mode such as 0660, for an owner and a group, or 0666, for every user")
_URL = partial(_check, r"https?://[^/\s]+(/\S*)?", "URL that begins with http:// or https://")
_ORIGIN = partial(
    _check, r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]*", "origin such as https://example.com, without a path, nor *"
)
_HOST = partial(_check, r"[^/\s]+", "host's name, which has neither spaces nor https://")


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Admission: which requests are accepted."""

    max_num_queued_reqs: Natural = option(4096, "requests that may wait; others are refused with 429 and Retry-After")
    max_num_queued_tokens: Count | None = option(None)
    """most tokens of the requests that may wait: prompts, and answers as predicted or as long as max_tokens allows"""
    requests_per_minute: Count | None = option(None, "generating requests that a key may make in any minute")
    tokens_per_minute: Count | None = option(None)
    """tokens, read and generated, after which in any minute a key is refused more requests"""
    max_concurrent_requests: Count | None = option(None)
    """answers that a key may have under way at a time: requests, or n times their prompts"""
    max_body_bytes: Annotated[int, Meta(ge=1024)] = option(4 * 1024 * 1024, "largest request body")


@dataclass(frozen=True, kw_only=True)
class AccessSettings:
    """Access: keys, and pages in browsers."""

    api_key: tuple[str, ...] = option((), secret=True)
    """API keys, one of which each call must have; others can read flags, so better use a file"""
    api_key_file: Path | None = option(None, "file with API keys, one a line, followed by its weight if it has one")
    allowed_origins: tuple[str, ...] = option((), "origins whose pages may call the API; *: all", check=_ORIGIN)
    allowed_methods: tuple[str, ...] = option(("*",), "HTTP methods that pages of allowed origins may use")
    allowed_headers: tuple[str, ...] = option(("*",), "headers that pages of allowed origins may send")
    allowed_hosts: tuple[str, ...] = option((), check=_HOST)
    """names, beside this machine's own, that a server without keys answers as on a loopback address"""
    allow_credentials: bool = option(False, "let pages of allowed origins send cookies and other credentials")


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Listening: where, how, and for how long."""

    host: str = option("127.0.0.1", "address to listen on")
    port: Annotated[int, Meta(ge=0, le=65535)] = option(8000, "port to listen on; 0 takes a free one")
    uds: Path | None = option(None, "listen on a Unix socket of this path instead of an address and a port")
    uds_mode: str | None = option(None, check=_MODE)
    """permissions of the Unix socket, as for chmod: 0666 for every user; default: what the umask leaves"""
    ssl_certfile: Path | None = option(None, "certificate chain in PEM: serve HTTPS")
    ssl_keyfile: Path | None = option(None, "private key of the certificate in PEM, where it is not in the same file")
    max_connections: Count = option(8192, "most connections at a time")
    send_timeout: Annotated[float, Meta(ge=0.1)] = option(30.0, "how long a client may leave unread what it is sent")
    body_timeout: Annotated[float, Meta(ge=0.1)] = option(10.0, "how long a request body may take to arrive")
    sse_keep_alive_interval: NonNegative = option(15.0)
    """silence after which a stream gets an event or a blank line that says nothing; 0: never"""
    shutdown_timeout: NonNegative = option(30.0, "how long running requests may take to end after SIGTERM")


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Observation: logs and traces."""

    log_level: Literal["debug", "info", "warning", "error"] = option("info", "least severe messages to log")
    log_format: Literal["human", "json"] = option("human", "lines for people, or a JSON object a line")
    otlp_traces_endpoint: str | None = option(None, check=_URL)
    """where to send a span of each call by OTLP over HTTP, as http://traces:4318/v1/traces; needs lengthwise[otel]"""
