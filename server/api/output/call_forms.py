"""Forms in which models write tool calls, keeping the arguments' bytes."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import msgspec
import orjson

from engine.sampling.json_schema import follow_reference
from server.api.input.tools import CLOSE, OPEN

Calls: TypeAlias = list[tuple[str, str]]  # names and arguments
Schemas: TypeAlias = Mapping[str, Mapping[str, Any]]  # by callable tool

FUNCTION_OPEN, FUNCTION_CLOSE, ARGUMENTS = "<function=", "</function>", ("arguments", "parameters")


class NoCall(ValueError):
    """Not a call of these tools."""


def read_json_calls(text: str, tools: Schemas, *, bare: bool = False) -> Calls:
    """Objects or lists of them, or arguments behind a name; a `bare` object must have arguments. Raises NoCall,
    msgspec.DecodeError, ValueError and RecursionError.
    """
    calls, at = Calls(), 0
    while at < len(text):
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text):
            break
        head = _NAME.match(text, at)
        begin = at if head is None else head.end()
        _, at = _VALUE.raw_decode(text, begin)
        written = _escape(text[begin:at])
        if head is not None:
            calls.append((head[1], _object(written)))
        else:
            values = msgspec.json.decode(written, type=list[msgspec.Raw] | dict[str, msgspec.Raw])
            calls += (_read_object(one, bare=bare) for one in (values if isinstance(values, list) else [written]))
    return calls


_VALUE = json.JSONDecoder(strict=False, parse_int=str, parse_float=str)
_BETWEEN = re.compile(r"(?:[\s,;]|\[TOOL_CALLS\])*")
_NAME = re.compile(r"([\w.-]+)\s*(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")


def _escape(text: str) -> str:
    return _STRING.sub(lambda string: _CONTROL.sub(lambda one: f"\\u{ord(one[0]):04x}", string[0]), text)


def _read_object(text: str | msgspec.Raw, *, bare: bool) -> tuple[str, str]:
    fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    given = next((fields[name] for name in ARGUMENTS if name in fields), None)
    if given is None and (bare or fields.keys() - {"name", "type", "id"}):
        raise NoCall
    name = msgspec.json.decode(fields.get("name", b"null"), type=str)
    return name, "{}" if given is None else _object(bytes(given).decode())


def _object(text: str) -> str:
    if text.startswith('"'):
        text = _escape(msgspec.json.decode(text, type=str).strip())
    if text in ("", "null"):
        return "{}"
    msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    return text


_FUNCTION = re.compile(rf"\s*{FUNCTION_OPEN}([^>\n]+)>\s*")
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>(.*?)</parameter>\s*(?=<parameter=|</function>)", re.DOTALL)


def read_tagged_calls(text: str, tools: Schemas) -> Calls:
    """A tag for each argument, of the type in the schema."""
    calls, at = Calls(), 0
    while head := _FUNCTION.match(text, at):
        schema, at, written = tools.get(head[1].strip(), {}), head.end(), list[str]()
        while one := _PARAMETER.match(text, at):
            name, at = one[1].strip(), one.end()
            value = one[2].removeprefix("\n").removesuffix("\n")
            kinds = frozenset(_kinds(schema.get("properties", {}).get(name), schema))
            written.append(f"{orjson.dumps(name).decode()}: {_typed(value, kinds)}")
        if not text.startswith(FUNCTION_CLOSE, at):
            raise NoCall
        at += len(FUNCTION_CLOSE)
        calls.append((head[1].strip(), f"{{{', '.join(written)}}}"))
    if text[at:].strip():
        raise NoCall
    return calls


def _kinds(schema: Any, root: Mapping[str, Any], depth: int = 8) -> Iterator[str]:
    if not isinstance(schema, dict) or not depth:
        return
    kinds = schema.get("type", ())
    yield from ("number" if kind == "integer" else kind for kind in ([kinds] if isinstance(kinds, str) else kinds))
    values = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]
    yield from (_KINDS.get(type(value), "null") for value in values)
    others = [one for key in ("anyOf", "oneOf", "allOf") for one in schema.get(key, ())]
    for one in (*others, follow_reference(schema.get("$ref"), root)):
        yield from _kinds(one, root, depth - 1)


_KINDS = {bool: "boolean", int: "number", float: "number", list: "array", dict: "object", str: "string"}
_WORDS = {"true": "true", "false": "false", "none": "null", "null": "null"}


def _typed(text: str, kinds: frozenset[str]) -> str:
    """JSON of one of these types if possible, else a string."""
    written = _escape(_WORDS.get(text.strip().lower(), text.strip()))
    with suppress(ValueError):
        value = orjson.loads(written)
        if not isinstance(value, str) and _KINDS.get(type(value), "null") in kinds:
            return written
    return orjson.dumps(text).decode()


@dataclass(frozen=True, slots=True)
class Form:
    """Marks of a call."""

    open: str
    close: str  # empty where the answer's end closes it
    read: Callable[[str, Schemas], Calls]

    def calls(self, text: str, tools: Schemas) -> Calls | None:
        """None unless all text between the marks is calls."""
        try:
            calls = self.read(text, tools)
        except (ValueError, msgspec.MsgspecError, RecursionError):
            return None
        return calls if calls and all(name in tools for name, _ in calls) else None


def _read_hermes(text: str, tools: Schemas) -> Calls:
    return read_tagged_calls(text, tools) if _FUNCTION.match(text) else read_json_calls(text, tools)


def _read_function(text: str, tools: Schemas) -> Calls:
    return read_tagged_calls(f"{FUNCTION_OPEN}{text}{FUNCTION_CLOSE}", tools)


FORMS = (
    Form(OPEN, CLOSE, _read_hermes),  # Hermes and Qwen; Qwen3-Coder
    Form(FUNCTION_OPEN, FUNCTION_CLOSE, _read_function),  # Qwen3-Coder without the outer mark
    Form("[TOOL_CALLS]", "", read_json_calls),  # Mistral: a list, or names before [ARGS]
    Form("<|python_tag|>", "", read_json_calls),  # Llama 3
)
# Llama 3, and Mistral with control tokens: the whole answer
BARE = Form("", "", partial(read_json_calls, bare=True))

_BARE_HEAD = re.compile(r'(?:\[\s*)?(?:\{\s*(?:"(?:[^"]*|(?:name|arguments|parameters|type|id)".*))?)?', re.DOTALL)


def may_be_bare(text: str, tools: Schemas) -> bool:
    text = text.lstrip()
    named = any(name.startswith(text) or text.startswith((f"{name}{{", f"{name}[ARGS]")) for name in tools)
    return named or _BARE_HEAD.fullmatch(text) is not None


def is_open(text: str) -> bool:
    """Ends within a string or argument, where marks do not count."""
    if "<parameter=" in text and _FUNCTION.match(f"{FUNCTION_OPEN}{text.lstrip().removeprefix(FUNCTION_OPEN)}"):
        return text.rfind("<parameter=") > text.rfind("</parameter>")
    return re.sub(r"\\.", "", text, flags=re.DOTALL).count('"') % 2 == 1
