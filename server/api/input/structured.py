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

from engine.sampling.grammar import WHITESPACE, Compiled, GrammarError, GrammarsFull
from engine.sampling.params import Grammar, GrammarKind
from server.api.errors import ApiError, bad_request, busy
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
    """The grammar that the answer must match; None where it may be anything. Raises ApiError."""
    if not tools.offered and body.response_format is None and body.structured_outputs is None:
        return None
    grammar, param, schemas = await model.run_in_thread(_read, body, tools, model.defaults.close_schemas)
    if model.grammars is None:
        if grammar is None:
            return None
        message = f"{param}: this server does not constrain answers (--no-structured-outputs); leave it out"
        raise bad_request(message, param, "unsupported")
    try:
        return await model.grammars.compile(grammar, schemas)
    except GrammarsFull as error:
        raise busy(f"{_path(param)}: {error}", "too_many_grammars", 1) from None
    except RefusedGrammar as error:
        path = _path(param) if error.place is None else f"tools[{error.place}].function.parameters"
        raise _wrong(path, error) from None
    except TrialsFailed as error:
        raise ApiError(503, str(error)) from None


def _read(body: TextBody, tools: Toolbox, closed: bool) -> tuple[Grammar | None, str, list[Grammar]]:
    """The grammar of the whole answer, the field that asks for it, and the schemas of all tools. Heavy."""
    answer, param = _answer(body, closed)
    schemas = _schemas(tools, enforced=tools.must_call or answer is not None)
    if tools.must_call:
        answer, param = calls_grammar(tools), "tools"
    elif tools and answer is not None:
        answer = calls_grammar(tools, answer)
    elif tools:
        param = "tools"
    if answer is not None and body.replay_tokens is not None:
        message = "replay_tokens: an answer of a given length cannot also be structured; leave one out"
        raise bad_request(message, "replay_tokens")
    return answer, param, schemas


def _answer(body: TextBody, closed: bool) -> tuple[Grammar | None, str]:
    """The grammar of the text itself, and the field that asks for it."""
    format_, outputs = body.response_format, body.structured_outputs
    asks = format_ is not None and format_.type != "text"
    if outputs is None:
        return (_of_format(format_, closed) if format_ is not None else None), "response_format"
    if asks:
        raise bad_request("structured_outputs: cannot go with response_format; give one of them", "structured_outputs")
    if isinstance(body, ChatBody) and body.tools and body.tool_choice != "none":
        message = "structured_outputs: cannot go with tools; use response_format, or set tool_choice to 'none'"
        raise bad_request(message, "structured_outputs")
    return _of_outputs(outputs, closed), "structured_outputs"


def _of_format(format_: ResponseFormat, closed: bool) -> Grammar | None:
    match format_.type:
        case "text":
            return None
        case "json_object":
            return ANY_OBJECT
        case "json_schema":
            path = "response_format.json_schema"
            if format_.json_schema is None or not is_given(format_.json_schema.schema):
                raise bad_request(f"{path}.schema: is missing", "response_format")
            schema = read_json(bytes(format_.json_schema.schema), f"{path}.schema", "response_format")
            strict = format_.json_schema.strict
            closed = closed or strict is True
            return _json(schema, f"{path}.schema", "response_format", lenient=strict is False, closed=closed)


def _of_outputs(outputs: StructuredOutputs, closed: bool) -> Grammar:
    param = "structured_outputs"
    given = [name for name in ("json", "regex", "choice", "grammar", "json_object") if _is_given(outputs, name)]
    if len(given) != 1:
        raise bad_request(f"{param}: give one of json, regex, choice, grammar and json_object: true", param)
    if outputs.regex is not None:
        return Grammar(GrammarKind.REGEX, outputs.regex)
    if outputs.grammar is not None:
        return Grammar(GrammarKind.LARK, outputs.grammar)
    if outputs.choice is not None:
        return Grammar(
            GrammarKind.LARK, "start: " + " | ".join(orjson.dumps(choice).decode() for choice in outputs.choice)
        )
    if outputs.json_object:
        return ANY_OBJECT
    schema = read_json(bytes(outputs.json), f"{param}.json", param)
    if isinstance(schema, str):  # vLLM takes a schema also as text
        schema = read_json(schema.encode(), f"{param}.json", param)
    return _json(schema, f"{param}.json", param, lenient=False, closed=closed)


def _is_given(outputs: StructuredOutputs, name: str) -> bool:
    value = getattr(outputs, name)
    return is_given(value) if isinstance(value, Raw) else value not in (None, False)


def _json(schema: Any, path: str, param: str, *, lenient: bool, closed: bool) -> Grammar:
    if not isinstance(schema, dict):
        raise bad_request(f"{path}: must be a JSON object, a schema", param)
    text = orjson.dumps(close_schema(schema) if closed else schema).decode()
    return Grammar(GrammarKind.JSON_SCHEMA, text, lenient)


def _schemas(tools: Toolbox, *, enforced: bool) -> list[Grammar]:
    """Each tool's schema by itself, so that an error names it; leniently where nothing is enforced."""
    return [
        Grammar(GrammarKind.JSON_SCHEMA, orjson.dumps(arguments_schema(tool)).decode(), tool.lenient or not enforced)
        for tool in tools.offered
    ]


def _path(param: str) -> str:
    return "response_format.json_schema.schema" if param == "response_format" else param


def _wrong(path: str, error: GrammarError) -> ApiError:
    hint = "; leave it out, or set strict to false to have it unchecked" if "Unimplemented" in str(error) else ""
    return bad_request(f"{path}: {error}{hint}", path.split(".")[0].split("[")[0], "invalid_grammar")


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
