"""Compiles an answer's grammar; each schema in a Lark grammar stands by itself, which keeps its references valid."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec
import orjson
from aiohttp import web
from msgspec import Raw

from engine.sampling.grammar import WHITESPACE, Compiled, GrammarsFull
from engine.sampling.json_schema import close_schema
from engine.sampling.params import Grammar, GrammarKind
from server.api.errors import ApiError, busy, invalid
from server.api.input.refused import Foreign, ignore, is_given, read_json
from server.api.input.schema import ChatBody, OtherWords, ResponseFormat, StructuredOutputs, TextBody
from server.api.input.tools import BETWEEN, CALL_TAIL, NO_TOOLS, Toolbox, call_head
from server.api.served_model import MODEL, ServedModel
from server.grammars import RefusedGrammar, TrialsFailed

CALLS = "start: calls"  # of calls_grammar
ANY_OBJECT = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')


async def give_up_compiling(app: web.Application) -> None:
    """Fail pending compilations at shutdown."""
    if MODEL in app and (compiler := app[MODEL].grammars) is not None:
        compiler.give_up()


OTHER_WORDS = OtherWords.__struct_fields__[len(Foreign.__struct_fields__) :]
form_of = attrgetter("response_format", "structured_outputs", *OTHER_WORDS)
NO_FORM = (None, None, *[Raw()] * len(OTHER_WORDS))  # nothing asked for


@dataclass(frozen=True, slots=True)
class Form:
    compiled: Compiled
    param: str  # asks for it


async def constraint(body: TextBody, model: ServedModel, tools: Toolbox = NO_TOOLS) -> Form | None:
    """None if unconstrained. Raises ApiError."""
    grammar, param = await model.run_in_thread(_read, body, tools, model.settings.close_schemas)
    if grammar is None:
        return None
    if model.grammars is None:
        fault = "this server does not constrain answers (--no-structured-outputs); leave it out"
        raise invalid(param, fault, "unsupported")
    path = "response_format.json_schema.schema" if param == "response_format" else param
    try:
        compiled = await model.grammars.compile(grammar)
    except GrammarsFull as error:
        raise busy(f"{path}: {error}", "too_many_grammars", 1) from None
    except RefusedGrammar as error:
        raise _refusal(str(error), path, grammar) from None
    except TrialsFailed as error:
        raise ApiError(503, str(error)) from None
    for where in compiled.unchecked:
        rule, _, rest = where.partition(".")
        own = _schema_path(rule, path) if grammar.text.startswith(CALLS) else f"{path}.{rule}"
        holder, _, keyword = f"{own}.{rest}".rstrip(".").rpartition(".")
        ignore(holder[:300], keyword)
    return Form(compiled, param)


# the library's words for valid but unsupported schemas
UNENFORCED = ("Unimplemented", "regex parse error", "lookarounds", "oneOf", "Resource")

IN_RULE = re.compile(r"at (?P<line>\d+)\(\d+\): failed to compile JSON schema: (?P<fault>.*?)(?: \d+ \| .*)?")


def _refusal(fault: str, path: str, grammar: Grammar) -> ApiError:
    if grammar.text.startswith(CALLS) and (found := IN_RULE.fullmatch(fault)):
        path = _schema_path(grammar.text.splitlines()[int(found["line"]) - 1], path)
        fault = found["fault"]
    hint = "; leave it out, or set strict to false to have it unchecked"
    fits = "." in path and any(one in fault for one in UNENFORCED)
    return invalid(path, f"{fault}{hint if fits else ''}", "invalid_grammar")


def _schema_path(rule: str, path: str) -> str:
    """Body path of a rule's schema, the answer's at `path`."""
    tool = re.match(r"arguments_(\d+)", rule)
    return path if tool is None else f"tools[{tool[1]}].function.parameters"


def _read(body: TextBody, tools: Toolbox, closed: bool) -> tuple[Grammar | None, str]:
    answer, param = _answer(body, closed)
    if tools.must_call:
        answer, param = calls_grammar(tools), "tools"
    elif tools.offered and answer is not None:
        answer = calls_grammar(tools, answer)
    if answer is not None and body.replay_tokens is not None:
        raise invalid("replay_tokens", "an answer of a given length cannot also be structured; leave one out")
    return answer, param


ASKS_NOTHING = (b"", b"null", b"false", b'""', b"[]")
GRAMMARS = {"json": "json", "json_schema": "json", "regex": "regex", "lark": "grammar"}


def _other_words(body: TextBody) -> Iterator[tuple[str, StructuredOutputs]]:
    for field in OTHER_WORDS:
        if (value := bytes(getattr(body, field))) in ASKS_NOTHING or (field == "nvext" and b'"guided_' not in value):
            continue
        own = field.removeprefix("guided_").replace("json_schema", "json").removesuffix("_pattern")
        if field == "format":
            own, value = ("json_object", b"true") if value == b'"json"' else ("json", value)
        if field == "grammar":
            given = read_json(value, field)
            own = GRAMMARS.get(str(given.get("type")), "") if isinstance(given, dict) else ""
            value = orjson.dumps(given.get("value")) if own else value
        if own in ("", "nvext"):
            fault = "what it asks for is not supported; use structured_outputs, whose grammar is written in Lark"
            raise invalid(field, fault, "unsupported")
        try:
            outputs = msgspec.json.decode(b'{"%b":%b}' % (own.encode(), value), type=StructuredOutputs)
        except msgspec.ValidationError as error:
            raise invalid(field, str(error).partition(" - at `")[0], "invalid_value") from None
        if own != "json_object" or outputs.json_object:
            yield field, outputs


def _answer(body: TextBody, closed: bool) -> tuple[Grammar | None, str]:
    asked = [*_other_words(body)]
    if body.structured_outputs is not None:
        asked.append(("structured_outputs", body.structured_outputs))
    format_ = body.response_format
    if not asked:
        return (None if format_ is None else _of_format(format_, closed)), "response_format"
    field, outputs = asked[-1]
    if len(asked) > 1 or (format_ is not None and format_.type != "text"):
        raise invalid(field, f"cannot go with {asked[0][0] if len(asked) > 1 else 'response_format'}; give one of them")
    if isinstance(body, ChatBody) and body.tools and body.tool_choice != "none":
        raise invalid(field, "cannot go with tools; use response_format, or set tool_choice to 'none'")
    return _of_outputs(outputs, field, closed), field


def _of_format(format_: ResponseFormat, closed: bool) -> Grammar | None:
    path, given = "response_format.json_schema.schema", format_.json_schema
    strict, schema = (None, format_.schema) if given is None else (given.strict, given.schema)
    if format_.type == "text" or (format_.type == "json_object" and given is None and not is_given(schema)):
        return None if format_.type == "text" else ANY_OBJECT
    if not is_given(schema):
        raise invalid(path, "is missing")
    return _of_json(read_json(bytes(schema), path), path, lenient=strict is not True, closed=closed or strict is True)


def _of_outputs(outputs: StructuredOutputs, field: str, closed: bool) -> Grammar:
    given = [name for name in outputs.__struct_fields__ if is_given(getattr(outputs, name))]
    if len(given) != 1:
        raise invalid(field, "give one of json, regex, choice, grammar and json_object: true")
    if outputs.regex is not None:
        return Grammar(GrammarKind.REGEX, outputs.regex)
    if outputs.choice is not None:
        return Grammar(GrammarKind.LARK, "start: " + " | ".join(map(_quoted, outputs.choice)))
    if outputs.grammar is not None:
        return Grammar(GrammarKind.LARK, outputs.grammar)
    if outputs.json_object:
        return ANY_OBJECT
    path = "structured_outputs.json" if field == "structured_outputs" else field
    schema = read_json(bytes(outputs.json), path)
    if isinstance(schema, str):  # vLLM also takes a text
        schema = read_json(schema.encode(), path)
    return _of_json(schema, path, lenient=False, closed=closed)


def _of_json(schema: Any, path: str, *, lenient: bool, closed: bool) -> Grammar:
    if not isinstance(schema, dict):
        raise invalid(path, "must be a JSON object, a schema")
    return Grammar(GrammarKind.JSON_SCHEMA, orjson.dumps(close_schema(schema) if closed else schema).decode(), lenient)


def calls_grammar(tools: Toolbox, answer: Grammar | None = None) -> Grammar:
    """One or more calls, or an answer of its own schema."""
    heads = " | ".join(f"{_quoted(call_head(tool.name))} arguments_{place}" for place, tool in tools.callable)
    start = CALLS if answer is None else f"{CALLS} | answer"
    calls = f"calls: call ({_quoted(BETWEEN)} call)*" if tools.parallel else "calls: call"
    rules = [start, calls, f"call: ({heads}) {_quoted(CALL_TAIL)}"]
    schemas = {f"arguments_{at}": (dict(one.parameters, type="object"), one.lenient) for at, one in tools.callable}
    if answer is not None:
        schemas["answer"] = orjson.loads(answer.text), answer.lenient
    rules += [f"{name}: %json {_schema(*schema)}" for name, schema in schemas.items()]
    return Grammar(GrammarKind.LARK, "\n".join(rules))


def _schema(schema: Mapping[str, Any], lenient: bool) -> str:
    return orjson.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE, "lenient": lenient}}).decode()


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()
