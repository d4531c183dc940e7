"""Grammars of answers that call tools: the markup of tool_words around arguments that match their schemas.

Written in Lark, in which each schema stands by itself, so that references inside it stay true.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from engine.sampling.grammar import WHITESPACE
from engine.sampling.params import Grammar, GrammarKind
from server.api.tools.tools import Tool, Toolbox
from server.api.tools.turns import BETWEEN, CALL_TAIL, call_head


def calls_grammar(tools: Toolbox, answer: Grammar | None = None) -> Grammar:
    """One call, or several where the client takes them; or else an answer as its own JSON schema wants it."""
    return Grammar(GrammarKind.LARK, "\n".join(_lines(tools, answer)))


def _lines(tools: Toolbox, answer: Grammar | None) -> Iterator[str]:
    yield "start: calls" if answer is None else "start: calls | answer"
    yield f"calls: call ({_quoted(BETWEEN)} call)*" if tools.parallel else "calls: call"
    heads = " | ".join(f"{_quoted(call_head(tool.name))} arguments_{place}" for place, tool in _numbered(tools))
    yield f"call: ({heads}) {_quoted(CALL_TAIL)}"
    for place, tool in _numbered(tools):
        yield f"arguments_{place}: %json {_schema(arguments_schema(tool), tool.lenient)}"
    if answer is not None:
        yield f"answer: %json {_schema(orjson.loads(answer.text), answer.lenient)}"


def _numbered(tools: Toolbox) -> Iterator[tuple[int, Tool]]:
    return enumerate(tools.callable)


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """The schema of a call's arguments: an object, also where the tool's schema does not say so."""
    return {"type": "object", **tool.parameters}


def _schema(schema: Mapping[str, Any] | bool, lenient: bool) -> str:
    """A schema with the compiler's options in it, where a Lark grammar has no other place for them."""
    options = {"whitespace_pattern": WHITESPACE, "lenient": lenient}
    return orjson.dumps({**(schema if isinstance(schema, dict) else {}), "x-guidance": options}).decode()


def _quoted(text: str) -> str:
    """Text as a literal of Lark, whose escapes are those of JSON."""
    return orjson.dumps(text).decode()
