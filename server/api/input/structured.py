"""The grammar of an answer, from the fields that ask for one: response_format, structured_outputs, tools.

It compiles what it finds, so that a bad grammar is the client's error and never an executor's; heavy, so never on
the event loop.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
from msgspec import Raw

from engine.messages import Grammar, GrammarKind
from engine.sampling.grammar import Compiled, GrammarError
from engine.sampling.grammar_bounds import require_bounds
from server.api.errors import ApiError, bad_request
from server.api.input.given_json import given_json, is_given
from server.api.input.schema import ChatBody, CompletionBody, ResponseFormat, StructuredOutputs
from server.api.served_model import ServedModel
from server.api.tools.grammar import arguments_schema, calls_grammar
from server.api.tools.tools import NO_TOOLS, Toolbox

ANY_OBJECT = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')


def constraint(body: ChatBody | CompletionBody, model: ServedModel, tools: Toolbox = NO_TOOLS) -> Compiled | None:
    """The grammar that the answer must match; None where it may be anything. Raises ApiError 400."""
    answer, param = _answer(body)
    _check_schemas(tools, model, enforced=tools.must_call or answer is not None)
    if tools.must_call:
        answer, param = calls_grammar(tools), "tools"
    elif tools and answer is not None:
        answer = calls_grammar(tools, answer)
    if answer is None:
        return None
    if body.replay_tokens is not None:
        message = "replay_tokens: an answer of a given length cannot also be structured; leave one out"
        raise bad_request(message, "replay_tokens")
    try:
        return model.grammars.compile(answer)
    except GrammarError as error:
        raise _wrong(_path(param), error) from None


def _answer(body: ChatBody | CompletionBody) -> tuple[Grammar | None, str]:
    """The grammar of the text itself, and the field that asks for it."""
    format_, outputs = body.response_format, body.structured_outputs
    asks = format_ is not None and format_.type != "text"
    if outputs is None:
        return (_of_format(format_) if format_ is not None else None), "response_format"
    if asks:
        raise bad_request("structured_outputs: cannot go with response_format; give one of them", "structured_outputs")
    if isinstance(body, ChatBody) and body.tools and body.tool_choice != "none":
        message = "structured_outputs: cannot go with tools; use response_format, or set tool_choice to 'none'"
        raise bad_request(message, "structured_outputs")
    return _of_outputs(outputs), "structured_outputs"


def _of_format(format_: ResponseFormat) -> Grammar | None:
    match format_.type:
        case "text":
            return None
        case "json_object":
            return ANY_OBJECT
        case "json_schema":
            path = "response_format.json_schema"
            if format_.json_schema is None or not is_given(format_.json_schema.schema):
                raise bad_request(f"{path}.schema: is missing", "response_format")
            schema = given_json(bytes(format_.json_schema.schema), f"{path}.schema", "response_format")
            return _json(schema, f"{path}.schema", "response_format", lenient=format_.json_schema.strict is False)


def _of_outputs(outputs: StructuredOutputs) -> Grammar:
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
    schema = given_json(bytes(outputs.json), f"{param}.json", param)
    if isinstance(schema, str):  # vLLM takes a schema also as text
        schema = given_json(schema.encode(), f"{param}.json", param)
    return _json(schema, f"{param}.json", param, lenient=False)


def _is_given(outputs: StructuredOutputs, name: str) -> bool:
    value = getattr(outputs, name)
    return is_given(value) if isinstance(value, Raw) else value not in (None, False)


def _json(schema: Any, path: str, param: str, *, lenient: bool) -> Grammar:
    if not isinstance(schema, dict):
        raise bad_request(f"{path}: must be a JSON object, a schema", param)
    return Grammar(GrammarKind.JSON_SCHEMA, orjson.dumps(schema).decode(), lenient)


def _check_schemas(tools: Toolbox, model: ServedModel, *, enforced: bool) -> None:
    """Each tool's schema by itself, so that an error names it; leniently where nothing is enforced.

    Bounds are for all of them together, as that is how they are compiled.
    """
    try:
        require_bounds(calls_grammar(replace(tools, wanted=None)))
    except GrammarError as error:
        raise _wrong("tools", error) from None
    for place, tool in enumerate(tools.offered):
        schema = orjson.dumps(arguments_schema(tool)).decode()
        try:
            model.grammars.check(Grammar(GrammarKind.JSON_SCHEMA, schema, tool.lenient or not enforced))
        except GrammarError as error:
            raise _wrong(f"tools[{place}].function.parameters", error) from None


def _path(param: str) -> str:
    return "response_format.json_schema.schema" if param == "response_format" else param


def _wrong(path: str, error: GrammarError) -> ApiError:
    hint = "; leave it out, or set strict to false to have it unchecked" if "Unimplemented" in str(error) else ""
    return bad_request(f"{path}: {error}{hint}", path.split(".")[0].split("[")[0], "invalid_grammar")
