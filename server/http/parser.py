"""The HTTP parser that reads what strangers send."""

from __future__ import annotations

from aiohttp import http_parser


class ParserError(Exception):
    """aiohttp came without its C parser; the message says what to do."""


def require_c_parser() -> None:
    """Raise ParserError for aiohttp's Python parser, which took malformed requests apart unlike proxies do."""
    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy:
        raise ParserError(
            "aiohttp runs without its C parser, which is not safe: unset AIOHTTP_NO_EXTENSIONS, "
            "and install a binary wheel of aiohttp"
        )
