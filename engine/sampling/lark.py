"""Grammars in Lark, read as far as it takes to see how large they are."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

TOKEN = re.compile(
    r"""(?P<comment>(?://|\#)[^\n]*)|(?P<text>"(?:\\.|[^"\\\n])*"i?|/(?:\\.|[^/\\])+/[imslux]*)"""
    r"""|(?P<json>%json\b\s*)|(?P<word>%?[A-Za-z_]\w*)|(?P<line>\n)|(?P<other>[^\s\w])"""
)
DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Lark:
    """A grammar's rules and terminals."""

    definitions: dict[str, list[str]]
    """The names that each rule or terminal is made of."""
    symbols: int
    """Names and literals, all together."""
    schemas: list[Any]
    """The JSON schemas in it."""


def read(text: str) -> Lark:
    """A grammar that need not be a valid one: the compiler tells what is wrong with it."""
    definitions: dict[str, list[str]] = {}
    schemas: list[Any] = []
    current: list[str] = []
    symbols, position, begins = 0, 0, True
    while (found := TOKEN.search(text, position)) is not None:
        position = found.end()
        kind = found.lastgroup
        if kind == "line":
            begins = True
        elif kind == "word" and begins:
            current = definitions.setdefault(found[0], [])
            begins = False
        elif kind in ("word", "text", "json"):
            symbols += 1
            current.append(found[0])
            begins = False
        elif kind == "other" and found[0] not in "?!":
            begins = False
        if kind == "json":
            schema, position = _json(text, position)
            schemas.append(schema)
    return Lark(definitions, symbols, schemas)


def _json(text: str, position: int) -> tuple[Any, int]:
    """The JSON at a place of a grammar, and where it ends; nothing of it where it is broken."""
    try:
        return DECODER.raw_decode(text, position)
    except (ValueError, RecursionError):
        return None, position
