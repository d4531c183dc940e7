"""Grammars that are small to send and huge to compile, and large ones that are what real programs send."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from engine.messages import Grammar, GrammarKind
from tests.engine.sampling.grammars import closed, schema, text

Link = Callable[[dict[str, Any]], dict[str, Any]]
OBJECT: dict[str, Any] = {"type": "object"}
WORD: dict[str, Any] = {"type": "string", "pattern": "^[a-z]+$"}


def chain(length: int, link: Link, last: dict[str, Any] | None = None) -> Grammar:
    """Definitions of which each is made from a reference to the next."""
    links = {f"d{number}": link({"$ref": f"#/$defs/d{number + 1}"}) for number in range(length)}
    return schema({"$defs": {**links, f"d{length}": last or {"type": "integer"}}, "$ref": "#/$defs/d0"})


def lark(*lines: str) -> Grammar:
    return Grammar(GrammarKind.LARK, "\n".join(lines))


def lark_chain(length: int, name: str, body: str) -> Grammar:
    """Rules or terminals of which each is made of the next."""
    links = (f"{name}{number}: " + body.format(f"{name}{number + 1}") for number in range(length))
    return lark(f"start: {name}0", *links, f'{name}{length}: "a"')


def anchored(length: int) -> Grammar:
    """The same chain, by names instead of paths."""
    links = {f"d{number}": {"$anchor": f"d{number}", "items": {"$ref": f"#d{number + 1}"}} for number in range(length)}
    return schema({"$defs": {**links, "end": {"$anchor": f"d{length}", "type": "null"}}, "$ref": "#d0"})


def both(one: dict[str, Any]) -> dict[str, Any]:
    return {"allOf": [{"properties": {"a": one}}, {"properties": {"a": one}}]}


ONE_OF_FOUR = [{"anyOf": [{"properties": {f"a{one}": {"const": two}}} for two in range(4)]} for one in range(6)]
SLOW_MULTIPLE = '{"type": "integer", "multipleOf": 499979}'

BOMBS: Mapping[str, tuple[Grammar, str]] = MappingProxyType(
    {
        # what: (the grammar, the bound that it exceeds)
        "a chain of references": (chain(1300, lambda one: {"items": one}), "2602 levels"),
        "a chain by anchors": (anchored(1300), "levels once its references"),
        "a chain backwards": (
            schema(
                {
                    "properties": {f"p{number}": {"$ref": f"#/$defs/d{number}"} for number in range(900, -1, -1)},
                    "$defs": {f"d{number}": {"items": {"$ref": f"#/$defs/d{number + 1}"}} for number in range(900)}
                    | {"d900": OBJECT},
                }
            ),
            "levels once its references",
        ),
        "a base below the root": (schema({"$defs": {"a": {"$id": "b", "type": "null"}}, "$ref": "#/$defs/a"}), "\\$id"),
        "a merge that doubles": (chain(24, both, WORD), "parts once its schemas are merged"),
        "patterns merged twice over": (chain(20, lambda one: {"allOf": [one, dict(one)]}, WORD), "parts once"),
        "keywords beside a reference": (
            chain(20, lambda one: {**one, "properties": {"a": one, "b": one}}, OBJECT),
            "parts once",
        ),
        "alternatives of alternatives": (
            chain(20, lambda one: {"anyOf": [{**one, "minItems": 1}, {**one, "maxItems": 5}]}, {"type": "array"}),
            "merged",
        ),
        "alternatives multiplied": (schema({"allOf": ONE_OF_FOUR}), "1024 alternatives in one place"),
        "a large multiple": (Grammar(GrammarKind.JSON_SCHEMA, SLOW_MULTIPLE), "499979 as the sum of its multipleOf"),
        "multiples merged": (schema({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}), "sum of its multipleOf"),
        "multiples that add up": (
            schema({"properties": {f"p{number}": {"multipleOf": number} for number in range(901, 951)}}),
            "sum of its multipleOf",
        ),
        "many values": (schema({"enum": list(range(10_000))}), "10001 subschemas and enum values"),
        "many references": (
            schema({"$defs": {"a": OBJECT}, "anyOf": [{"$ref": "#/$defs/a"}] * 2049}),
            "2049 references",
        ),
        "much text": (schema({"description": "x" * 1_050_000}), "characters"),
        "a chain of rules": (lark_chain(4000, "r", "{0}"), "4002 rules and terminals"),
        "a terminal that doubles": (lark_chain(20, "R", "{0} {0}"), "in a terminal once it is written out"),
        "many optional symbols": (lark("start: " + 'b? "c" ' * 10_000, 'b: "x"'), "20001 names and literals"),
        "a schema within rules": (lark(f"start: %json {SLOW_MULTIPLE}"), "sum of its multipleOf"),
        "an ambiguous start": (lark("start: a", "a: " + "b? " * 4000, 'b: "x"'), "Too many items"),
    }
)


def _field(number: int) -> dict[str, Any]:
    """Of a definition in a document of an API."""
    fields = (
        {"type": "string", "format": "date-time"},
        {"anyOf": [{"$ref": f"#/$defs/Type{(number * 7) % 120}"}, {"type": "null"}]},
        {"type": "array", "items": {"$ref": f"#/$defs/Type{(number + 1) % 120}"}, "maxItems": 100_000},
        {"type": "number", "multipleOf": 0.01, "minimum": 0},
        {"type": "string", "enum": ["open", "closed", "unknown"]},
    )
    return fields[number % len(fields)]


def _type(number: int) -> dict[str, Any]:
    own = closed(**{f"field{place}": _field(number + place) for place in range(6)})
    return {"allOf": [{"$ref": "#/$defs/Base"}, own | {"additionalProperties": True}]} if number % 10 == 0 else own


BASE = {"type": "object", "properties": {"id": {"type": "string"}, "kind": text()}, "required": ["id"]}
API = {"$defs": {"Base": BASE, **{f"Type{number}": _type(number) for number in range(120)}}, "$ref": "#/$defs/Type1"}
JSON_VALUE = {
    "$defs": {
        "value": {
            "anyOf": [
                {"type": ["string", "number", "boolean", "null"]},
                {"type": "array", "items": {"$ref": "#/$defs/value"}},
                {"type": "object", "additionalProperties": {"$ref": "#/$defs/value"}},
            ]
        }
    },
    "$ref": "#/$defs/value",
}
TREE = {"type": "object", "properties": {"value": OBJECT, "children": {"type": "array", "items": {"$ref": "#"}}}}
SHAPES = [closed(kind={"const": f"shape {number}"}, size={"$ref": "#/$defs/size"}) for number in range(100)]
ARGUMENTS = json.dumps(closed(**{f"argument{number}": {"type": "string"} for number in range(20)}))

REAL: Mapping[str, Grammar] = MappingProxyType(
    {
        "an API of 120 types in circles": schema(API),
        "any JSON": schema(JSON_VALUE),
        "a tree": schema(TREE),
        "an enum of 1,000": schema({"enum": [f"value {number}" for number in range(1000)]}),
        "a union of 100 objects": schema({"$defs": {"size": {"type": "integer", "multipleOf": 25}}, "anyOf": SHAPES}),
        "a chain of 300": chain(300, lambda one: {"type": "array", "items": one}),
        "long repetitions": schema(
            {
                "properties": {
                    "text": {"type": "string", "maxLength": 1_000_000, "pattern": "^(a{1,1000}b){1,1000}$"},
                    "list": {"type": "array", "minItems": 1_000_000, "items": {"type": "integer", "multipleOf": 86.4}},
                }
            }
        ),
        "a long repetition": Grammar(GrammarKind.REGEX, "((a{1,1000}){1,1000}b){1,1000}"),
        "1,024 choices": lark("start: " + " | ".join(json.dumps(f"a choice, number {one}") for one in range(1024))),
        "128 tools": lark(
            "start: " + " | ".join(f'"tool{number}" t{number}' for number in range(128)),
            *(f"t{number}: %json {ARGUMENTS}" for number in range(128)),
        ),
        "terminals with comments": lark("# words: A A A", "start: A // A: B", 'A: B /[a-z"]+/ B', 'B: "x"i | "//"'),
    }
)
"""None of these may be refused."""
