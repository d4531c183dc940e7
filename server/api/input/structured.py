"""The grammar of an answer, from the fields that ask for one: response_format, structured_outputs, tools.

It has it compiled, so that a bad grammar is the client's error and never an executor's. Grammars of answers that call
tools are written in Lark, in which each schema stands by itself, so that references inside it stay true.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from aiohttp import web
from msgspec import Raw

from engine.sampling.grammar import WHITESPACE, Compiled, GrammarsFull
from engine.sampling.params import Grammar, GrammarKind
from server.api.errors import ApiError, busy, invalid
from server.api.input.fields import is_given, read_json
from server.api.input.schema import ChatBody, ResponseFormat, StructuredOutputs, TextBody
from server.api.input.tools import BETWEEN, CALL_TAIL, NO_TOOLS, Tool, Toolbox, call_head, close_schema
from server.api.served_model import MODEL, ServedModel
from server.grammars import RefusedGrammar, TrialsFailed

ANY_OBJECT = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')


async def give_up_compiling(app: web.Application) -> None:
    """Let calls whose grammars are being tried be answered before the server ends."""
    if MODEL in app and (compiler := app[MODEL].grammars) is not None:
        compiler.give_up()


async def constraint(body: TextBody, model: ServedModel, tools: Toolbox = NO_TOOLS) -> Compiled | None:
    """The grammar that the answer must match; None where it may be anything after all. Raises ApiError."""
    grammar, param, schemas = await model.run_in_thread(_read, body, tools, model.defaults.close_schemas)
    if model.grammars is None and grammar is not None:
        fault = "this server does not constrain answers (--no-structured-outputs); leave it out"
        raise invalid(param, fault, "unsupported")
    if model.grammars is None:
        return None
    path = "response_format.json_schema.schema" if param == "response_format" else param
    try:
        return await model.grammars.compile(grammar, schemas)
    except GrammarsFull as error:
        raise busy(f"{path}: {error}", "too_many_grammars", 1) from None
    except RefusedGrammar as error:
        hint = "; leave it out, or set strict to false to have it unchecked" if "Unimplemented" in str(error) else ""
        path = path if error.place is None else f"tools[{error.place}].function.parameters"
        raise invalid(path, f"{error}{hint}", "invalid_grammar") from None
    except TrialsFailed as error:
        raise ApiError(503, str(error)) from None


def _read(body: TextBody, tools: Toolbox, closed: bool) -> tuple[Grammar | None, str, list[Grammar]]:
    """The grammar of the whole answer, the field that asks for it, and the schemas of all tools. Heavy."""
    answer, param = _answer(body, closed)
    enforced = tools.must_call or answer is not None
    # Each tool's schema by itself, so that an error names it; leniently where nothing is enforced.
    schemas = [_of_schema(arguments_schema(tool), tool.lenient or not enforced) for tool in tools.offered]
    if tools.must_call:
        answer, param = calls_grammar(tools), "tools"
    elif tools and answer is not None:
        answer = calls_grammar(tools, answer)
    elif tools:
        param = "tools"
    if answer is not None and body.replay_tokens is not None:
        raise invalid("replay_tokens", "an answer of a given length cannot also be structured; leave one out")
    return answer, param, schemas


def _answer(body: TextBody, closed: bool) -> tuple[Grammar | None, str]:
    """The grammar of the text itself, and the field that asks for it."""
    format_, outputs = body.response_format, body.structured_outputs
    if outputs is None:
        return (None if format_ is None else _of_format(format_, closed)), "response_format"
    if format_ is not None and format_.type != "text":
        raise invalid("structured_outputs", "cannot go with response_format; give one of them")
    if isinstance(body, ChatBody) and body.tools and body.tool_choice != "none":
        raise invalid("structured_outputs", "cannot go with tools; use response_format, or set tool_choice to 'none'")
    return _of_outputs(outputs, closed), "structured_outputs"


def _of_format(format_: ResponseFormat, closed: bool) -> Grammar | None:
    if format_.type != "json_schema":
        return ANY_OBJECT if format_.type == "json_object" else None
    path, given = "response_format.json_schema.schema", format_.json_schema
    if given is None or not is_given(given.schema):
        raise invalid(path, "is missing")
    closed, schema = closed or given.strict is True, read_json(bytes(given.schema), path)
    return _of_json(schema, path, lenient=given.strict is False, closed=closed)


def _of_outputs(outputs: StructuredOutputs, closed: bool) -> Grammar:
    given = [name for name in outputs.__struct_fields__ if _is_given(getattr(outputs, name))]
    if len(given) != 1:
        raise invalid("structured_outputs", "give one of json, regex, choice, grammar and json_object: true")
    if outputs.regex is not None:
        return Grammar(GrammarKind.REGEX, outputs.regex)
    if outputs.choice is not None:
        return Grammar(GrammarKind.LARK, "start: " + " | ".join(map(_quoted, outputs.choice)))
    if outputs.grammar is not None:
        return Grammar(GrammarKind.LARK, outputs.grammar)
    if outputs.json_object:
        return ANY_OBJECT
    path = "structured_outputs.json"
    schema = read_json(bytes(outputs.json), path)
    if isinstance(schema, str):  # vLLM takes a schema also as text
        schema = read_json(schema.encode(), path)
    return _of_json(schema, path, lenient=False, closed=closed)


def _is_given(value: object) -> bool:
    return is_given(value) if isinstance(value, Raw) else value not in (None, False)


def _of_json(schema: Any, path: str, *, lenient: bool, closed: bool) -> Grammar:
    if not isinstance(schema, dict):
        raise invalid(path, "must be a JSON object, a schema")
    return _of_schema(close_schema(schema) if closed else schema, lenient)


def _of_schema(schema: Mapping[str, Any], lenient: bool) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, orjson.dumps(schema).decode(), lenient)


def calls_grammar(tools: Toolbox, answer: Grammar | None = None) -> Grammar:
    """One call, or several where the client takes them; or else an answer as its own JSON schema wants it."""
    return Grammar(GrammarKind.LARK, "\n".join(_lines(tools, answer)))


def _lines(tools: Toolbox, answer: Grammar | None) -> Iterator[str]:
    yield "start: calls" if answer is None else "start: calls | answer"
    yield f"calls: call ({_quoted(BETWEEN)} call)*" if tools.parallel else "calls: call"
    heads = " | ".join(
        f"{_quoted(call_head(tool.name))} arguments_{place}" for place, tool in enumerate(tools.callable)
    )
    yield f"call: ({heads}) {_quoted(CALL_TAIL)}"
    for place, tool in enumerate(tools.callable):
        yield f"arguments_{place}: %json {_schema(arguments_schema(tool), tool.lenient)}"
    if answer is not None:
        yield f"answer: %json {_schema(orjson.loads(answer.text), answer.lenient)}"


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
