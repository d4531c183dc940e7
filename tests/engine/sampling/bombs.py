"""Grammars that are small to send and huge to compile, and large ones that are what real programs send."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from engine.sampling.params import Grammar, GrammarKind
from tests.engine.sampling.grammars import closed, schema, text

Link = Callable[[dict[str, Any]], dict[str, Any]]
OBJECT: dict[str, Any] = {"type": "object"}
STRING: dict[str, Any] = {"type": "string"}
WORD: dict[str, Any] = STRING | {"pattern": "^[a-z]+$"}


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
    """A chain of definitions, each naming the next by its anchor instead of its path."""
    links = {f"d{number}": {"$anchor": f"d{number}", "items": {"$ref": f"#d{number + 1}"}} for number in range(length)}
    return schema({"$defs": {**links, "end": {"$anchor": f"d{length}", "type": "null"}}, "$ref": "#d0"})


def both(one: dict[str, Any]) -> dict[str, Any]:
    return {"allOf": [{"properties": {"a": one}}, {"properties": {"a": one}}]}


ONE_OF_FOUR = [{"anyOf": [{"properties": {f"a{one}": {"const": two}}} for two in range(4)]} for one in range(6)]
FORTY = {f"d{number}": {"$ref": f"#/$defs/d{number}"} for number in range(40)}
SLOW_MULTIPLE = '{"type": "integer", "multipleOf": 499979}'


def regex(pattern: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, pattern)


LINKS: Mapping[str, Link] = {
    "items": lambda one: {"items": one},
    "properties": lambda one: {"properties": {"a": one}},
    "required properties": lambda one: {"type": "object", "properties": {"a": one}, "required": ["a"]},
    "additional properties": lambda one: {"additionalProperties": one},
    "patterned properties": lambda one: {"patternProperties": {"^a": one}},
    "places": lambda one: {"prefixItems": [one, one]},
    "allOf": lambda one: {"allOf": [one, {"title": "x"}]},
    "anyOf": lambda one: {"anyOf": [one, {"type": "null"}]},
    "oneOf": lambda one: {"oneOf": [{"type": "null"}, one]},
    "bare references": lambda one: one,
}
"""Ways from a definition to the next."""

SCHEMAS: Mapping[str, Grammar] = {
    **{f"1,300 links by {name}": chain(1300, link) for name, link in LINKS.items()},
    "4,000 links by items": chain(4000, LINKS["items"]),
    "a chain by anchors": anchored(1300),
    "a chain backwards": schema(
        {
            "properties": {f"p{number}": {"$ref": f"#/$defs/d{number}"} for number in range(900, -1, -1)},
            "$defs": {f"d{number}": {"items": {"$ref": f"#/$defs/d{number + 1}"}} for number in range(900)}
            | {"d900": OBJECT},
        }
    ),
    "a base below the root": schema({"$defs": {"a": {"$id": "b", "type": "null"}}, "$ref": "#/$defs/a"}),
    "a schema that is itself": schema({"$ref": "#"}),
    "a schema that is twice itself": schema({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}),
    "a circle that is merged": schema(
        {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}}
        | {"$ref": "#/$defs/a"}
    ),
    "all refer to all": schema({"$defs": dict.fromkeys(FORTY, {"anyOf": [*FORTY.values()]}), **FORTY["d0"]}),
    "a merge that doubles": chain(24, both, WORD),
    "patterns merged twice over": chain(20, lambda one: {"allOf": [one, dict(one)]}, WORD),
    "keywords beside a reference": chain(20, lambda one: {**one, "properties": {"a": one, "b": one}}, OBJECT),
    "alternatives of alternatives": chain(
        20, lambda one: {"anyOf": [one | {"minItems": 1}, one | {"maxItems": 5}]}, {"type": "array"}
    ),
    "one of two, of two": chain(20, lambda one: {"oneOf": [one | {"minLength": 1}, one | {"maxLength": 5}]}, STRING),
    "alternatives multiplied": schema({"allOf": ONE_OF_FOUR}),
    "a large multiple": Grammar(GrammarKind.JSON_SCHEMA, SLOW_MULTIPLE),
    "a larger multiple": schema({"type": "integer", "multipleOf": 4_999_999}),
    "a multiple with many places": schema({"type": "number", "multipleOf": 0.000000499979}),
    "multiples merged": schema({"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}),
    "multiples that add up": schema({"properties": {f"p{n}": {"multipleOf": n} for n in range(40_000, 40_050)}}),
    "many values": schema({"enum": list(range(10_000))}),
    "many long values": schema({"enum": [f"{number} {'x' * 1000}" for number in range(60)]}),
    "many references": schema({"$defs": {"a": OBJECT}, "anyOf": [{"$ref": "#/$defs/a"}] * 2049}),
    "many properties": schema(closed(**{f"p{number}": text() for number in range(3000)})),
    "many optional properties": schema({"properties": {f"p{number}": {"type": "null"} for number in range(3000)}}),
    "many patterned properties": schema(
        {"patternProperties": {f"a{{{number}}}.*b": {"type": "integer"} for number in range(1, 300)}}
    ),
    "much text": schema({"description": "x" * 1_050_000}),
    "wide numbers": schema({"type": "integer", "minimum": -(10**300), "maximum": 10**300}),
    "narrow numbers": schema({"type": "number", "minimum": 1e-300, "maximum": 1.0000000000000002}),
    "very long strings": schema({"type": "string", "minLength": 10**9, "maxLength": 2 * 10**9}),
    "very long lists": schema({"items": {"items": {"minItems": 10**6}, "minItems": 10**6}, "minItems": 10**6}),
    "repetitions of repetitions in a string": schema(STRING | {"pattern": "^(((a{1,99}){1,99}){1,99}b)+$"}),
    "any character, often": schema(STRING | {"pattern": "^.{1,100000}$"}),
    "optional letters, then as many": schema(STRING | {"pattern": "^(a?){2000}a{2000}$"}),
}

LARKS: Mapping[str, Grammar] = {
    "a chain of rules": lark_chain(4000, "r", "{0}"),
    "a chain of terminals": lark_chain(4000, "R", "{0}"),
    "a terminal that doubles": lark_chain(20, "R", "{0} {0}"),
    "a terminal that doubles for long": lark_chain(40, "R", "{0} | {0} {0}"),
    "a rule that doubles": lark_chain(40, "r", "{0} {0}"),
    "many optional symbols": lark("start: " + 'b? "c" ' * 10_000, 'b: "x"'),
    "many brackets": lark("start: " + "(" * 5000 + '"a"' + ")" * 5000),
    "many repetitions": lark("start: " + "(" * 300 + '"a"' + ")*" * 300),
    "a large range": lark('start: "a"{0,1000000}'),
    "ranges of ranges": lark("start: a{1,1000}", "a: b{1,1000}", 'b: "x"{1,1000}'),
    "rules that may be empty": lark("start: a", "a: b b b b", "b: c c c c", "c: a |"),
    "a circle of rules": lark("start: start | start start |"),
    "a circle of terminals": lark("start: A", 'A: B "x"', 'B: A "y"'),
    "a schema within rules": lark(f"start: %json {SLOW_MULTIPLE}"),
    "many schemas within rules": lark(
        "start: " + " | ".join(f"j{one}" for one in range(300)),
        *(f'j{one}: %json {{"multipleOf": {900 + one}}}' for one in range(300)),
    ),
    "an ambiguous start": lark("start: a", "a: " + "b? " * 4000, 'b: "x"'),
    "all of these letters": lark('start: %regex {"substring_chars": "' + "abcdefgh ijk" * 20_000 + '"}'),
}

PATTERNS: Mapping[str, Grammar] = {
    "brackets in a pattern": regex("(" * 10_000 + "a" + ")" * 10_000),
    "repetitions of repetitions": regex("((((a{1,999}){1,999}){1,999}){1,999}){1,999}"),
    "a long exact repetition": regex("(abc|[a-z]){1000000}"),
    "nested stars": regex("((((a*)*)*)*)*b"),
    "letters of all languages": regex(r"(\p{L}|\p{N}|\p{S}){1,5000}\p{Lu}"),
    "many alternatives": regex("|".join(f"{number}x*{number}" for number in range(30_000))),
    "an intersection of shifts": regex("(.*a.{60}|.*b.{61}|.*c.{62}){3}"),
    "classes with classes inside": regex("[" * 2000 + "a" + "]" * 2000),
}

SLOW_MASKS: Mapping[str, Grammar] = {
    "ambiguous by two": lark("start: a", "a: a a | /./ |"),
    "ambiguous by three": lark("start: a", 'a: a a a | "a"'),
    "ambiguous by six": lark("start: a", "a: a a a a a a| /./ |"),
    "ambiguous letters": lark("start: a", "a: a a a | /[a-z]/"),
    "a memory of sixty letters": regex("[a-z ]*a[a-z ]{60}"),
    "memories of many letters": regex("(.*a.{40}|.*b.{50}|.*c.{60})x"),
    "many memories": lark("start: (" + "|".join(f"/[a-z]*{chr(97 + i)}[a-z]{{{10 + i}}}/" for i in range(26)) + ")*"),
}
"""These compile in no time: what follows an answer takes long to tell, and memory."""

BOMBS: Mapping[str, Grammar] = {**SCHEMAS, **LARKS, **PATTERNS, **SLOW_MASKS}


def _field(number: int) -> dict[str, Any]:
    """A field of a definition in a document of an API."""
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
ANY = {"$ref": "#/$defs/value"}
SIMPLE = {"type": ["string", "number", "boolean", "null"]}
LIST_OR_OBJECT = [{"type": "array", "items": ANY}, {"type": "object", "additionalProperties": ANY}]
JSON_VALUE = {"$defs": {"value": {"anyOf": [SIMPLE, *LIST_OR_OBJECT]}}, **ANY}
TREE = {"type": "object", "properties": {"value": OBJECT, "children": {"type": "array", "items": {"$ref": "#"}}}}
SHAPES = [closed(kind={"const": f"shape {number}"}, size={"$ref": "#/$defs/size"}) for number in range(100)]
ARGUMENTS = json.dumps(closed(**{f"argument{number}": {"type": "string"} for number in range(20)}))

REAL: Mapping[str, Grammar] = {
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
"""None of these may be refused."""
