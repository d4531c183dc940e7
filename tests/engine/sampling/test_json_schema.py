"""JSON schemas made ready for the grammar library."""

from typing import Any

import orjson
import pytest
from llguidance import LLMatcher

from engine.sampling.grammar import GrammarError, Grammars
from engine.sampling.json_schema import FORMATS, loosen_schema, strip_schema
from engine.sampling.params import Grammar, GrammarKind
from tests.server.fakes import END, FakeText

TEXT: dict[str, Any] = {"type": "string"}
NUMBERS = {"type": "object", "additionalProperties": {"type": "number"}}


def compiled(schema: object, *, lenient: bool) -> tuple[str, ...]:
    grammars = Grammars(FakeText().to_json, FakeText.VOCAB, {END})
    text = orjson.dumps({"type": "object", "properties": {"p": schema}, "required": ["p"]}).decode()
    return grammars.compile(Grammar(GrammarKind.JSON_SCHEMA, text, lenient)).unchecked


OTHER_FORMATS = (
    *("path", "file-path", "directory-path", "password", "binary", "byte", "base64", "base64url", "json-string"),
    *("int32", "int64", "uint8", "float", "double", "regex", "uri-reference", "uri-template", "iri", "json-pointer"),
    *("idn-email", "nanoid", "cuid", "cuid2", "ulid", "jwt", "e164", "cidrv4", "cidrv6", "emoji", "of our own", ""),
)

NOTHING: dict[str, dict[str, Any]] = {
    **{f"format {name}": TEXT | {"format": name} for name in OTHER_FORMATS},
    "a format of null": TEXT | {"format": None},
    "names that are texts": NUMBERS | {"propertyNames": TEXT},
    "names of an annotated text": NUMBERS | {"propertyNames": {"type": "string", "title": "Name", "format": "path"}},
    "names of any kind": NUMBERS | {"propertyNames": {}},
    "names that may be all": NUMBERS | {"propertyNames": True},
    "items that may be equal": {"type": "array", "uniqueItems": False},
    "nothing depends": {"type": "object", "dependentRequired": {}, "dependentSchemas": {}, "dependencies": {}},
    "nothing depends on a name": {"type": "object", "dependentRequired": {"a": []}, "dependentSchemas": {"a": True}},
    "no patterns": {"type": "object", "patternProperties": {}},
    "a count of nothing": {"type": "array", "minContains": 2, "maxContains": 3},
    "no item need be there": {"type": "array", "contains": TEXT, "minContains": 0},
    "if alone": {"type": "object", "if": {"required": ["a"]}},
    "if, and then anything": {"type": "object", "if": {"required": ["a"]}, "then": {}, "else": True},
    "then alone": {"type": "object", "then": {"required": ["a"]}, "else": False},
    "not nothing": TEXT | {"not": False},
    "any other": {"type": "object", "unevaluatedProperties": True, "unevaluatedItems": {}},
    "notes": TEXT | {"$comment": "x", "deprecated": True, "readOnly": True, "examples": [1], "x-order": 3, "title": 1},
    "how it is encoded": TEXT | {"contentEncoding": "base64", "contentMediaType": "image/png", "contentSchema": {}},
    "items beyond no list": {"type": "array", "additionalItems": False},
    "an anchor": TEXT | {"$dynamicAnchor": "x"},
    "another dialect": TEXT | {"$schema": "https://example.org/schema"},
    "nulls": TEXT | {"minLength": None, "pattern": None, "enum": None, "items": None, "anyOf": None},
    "a whole number with a fraction of nothing": TEXT | {"maxLength": 3.0},
    "the library's own options": TEXT | {"x-guidance": {"unknown": 1}},
}


@pytest.mark.parametrize("schema", NOTHING.values(), ids=NOTHING)
def test_keywords_that_bind_nothing_are_taken_even_strictly(schema: dict[str, Any]) -> None:
    assert compiled(schema, lenient=False) == compiled({"anyOf": [schema]}, lenient=True) == ()


def test_the_formats_are_those_that_the_library_enforces() -> None:
    for name in (*FORMATS, *OTHER_FORMATS):
        text = LLMatcher.grammar_from_json_schema(orjson.dumps(TEXT | {"format": name}).decode())
        assert (not LLMatcher.validate_grammar(text)) == (name in FORMATS)


@pytest.mark.parametrize("name", ["format", "uniqueItems", "not", "if", "contains", "propertyNames"])
def test_what_looks_like_a_keyword_but_is_a_name_or_a_value_stays(name: str) -> None:
    schemas: list[dict[str, Any]] = [{"properties": {name: TEXT}}, {"enum": [{name: False}]}, {"const": {name: None}}]
    for schema in schemas:
        assert strip_schema(schema) == schema


def test_what_binds_stays() -> None:
    binding: list[dict[str, Any]] = [
        {"uniqueItems": True},
        {"propertyNames": {"pattern": "a"}},
        {"propertyNames": False},
        {"contains": TEXT},
        {"contains": TEXT, "minContains": 0, "maxContains": 1},
        {"if": {}, "then": TEXT},
        {"not": {}},
        {"dependentRequired": {"a": ["b"]}},
        {"const": None},
        {"default": None},
        {"enum": [None]},
        {"format": "date"},
        {"unevaluatedProperties": False},
    ]
    for schema in binding:
        assert strip_schema(schema) == schema


@pytest.mark.parametrize(("pattern", "left"), [("^a$", []), ("^(a|b)$", []), ("^(?:b)$", []), ("^(a|c)$", ["^(a|c)$"])])
def test_a_pattern_of_known_names_becomes_a_part_of_these(pattern: str, left: list[str]) -> None:
    """Behind them the library let a comma follow, and then nothing: the answer failed when half of it was there."""
    small = {"type": "integer", "maximum": 9}
    known = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    schema = strip_schema({"type": "object", "properties": known, "patternProperties": {pattern: small}})
    assert list(schema["patternProperties"]) == left
    joined = [name for name, one in schema["properties"].items() if one == {"allOf": [{"type": "integer"}, small]}]
    assert joined == ([] if left else [name for name in "ab" if name in pattern])


def props(**properties: Any) -> dict[str, Any]:
    return {"properties": properties}


INTEGER, LIST, OBJECT, SHORT = (
    {"type": "integer"},
    {"type": "array", "items": TEXT},
    {"type": "object"},
    {"maxLength": 1},
)
AHEAD = TEXT | {"pattern": "(?=a)"}
NEXT, TO_A, TO_B = {"$ref": "#/properties/a"}, {"$ref": "#/$defs/a"}, props(b={"$ref": "#/$defs/b"})
ODD: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    # what: (schema, what still binds, where what does not stands)
    "look-ahead": (TEXT | {"pattern": "^(?!a)"}, TEXT, ["pattern"]),
    "look-behind": (TEXT | {"pattern": "(?<=a)b", "maxLength": 3}, TEXT | {"maxLength": 3}, ["pattern"]),
    "a back-reference": (TEXT | {"pattern": r"^(a)\1$"}, TEXT, ["pattern"]),
    "Python's end": (TEXT | {"pattern": r"\A\d+\Z"}, TEXT, ["pattern"]),
    "a border of words": (TEXT | {"pattern": r"\ba\b"}, TEXT, ["pattern"]),
    "a broken pattern": (TEXT | {"pattern": "a("}, TEXT, ["pattern"]),
    "a pattern that is none": (TEXT | {"pattern": 3}, TEXT, ["pattern"]),
    "no type": ({"type": "any", "maxLength": 3}, {"maxLength": 3}, ["type"]),
    "a file": (props(a={"type": "file"}, b=TEXT), props(a={}, b=TEXT), ["properties.a.type"]),
    "no list": ({"enum": "a"}, {}, ["enum"]),
    "nothing to choose": ({"enum": []}, {}, ["enum"]),
    "elsewhere": ({"$ref": "https://example.org/a", "type": "string"}, TEXT, ["$ref"]),
    "nowhere": ({"$ref": "#/$defs/none"}, {}, ["$ref"]),
    "no schema": (props(a=3), props(a=True), ["properties.a"]),
    "a wrong count": (TEXT | {"minLength": "1", "maxLength": 2}, TEXT | {"maxLength": 2}, ["minLength"]),
    "unique items": (LIST | {"uniqueItems": True}, LIST, ["uniqueItems"]),
    "options that overlap": ({"oneOf": [TEXT, TEXT | SHORT]}, {"anyOf": [TEXT, TEXT | SHORT]}, ["oneOf"]),
    "one of several": ({"anyOf": [INTEGER, AHEAD]}, {"anyOf": [INTEGER, TEXT]}, ["anyOf[1].pattern"]),
    "what is referred to": (
        TO_A | {"$defs": {"a": TO_B, "b": {"not": TEXT} | SHORT}},
        TO_A | {"$defs": {"a": TO_B, "b": SHORT}},
        ["$defs.b.not"],
    ),
    "a neighbour that is referred to": (props(a=AHEAD, b=NEXT), props(a=TEXT, b=NEXT), ["properties.a.pattern"]),
    "names by a pattern": (
        OBJECT | {"patternProperties": {"^(?!a)": TEXT}, "additionalProperties": False},
        OBJECT,
        ["patternProperties"],
    ),
}


@pytest.mark.parametrize("case", ODD.values(), ids=ODD)
def test_of_a_lenient_schema_all_binds_that_can(case: tuple[dict[str, Any], dict[str, Any], list[str]]) -> None:
    schema, left, where = case

    def takes(part: Any) -> bool:
        return not LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(orjson.dumps(part).decode()))

    assert not takes(schema)
    assert loosen_schema(schema, takes) == (left, where)
    if "$ref" not in str(schema) and schema != {"enum": []}:
        assert compiled(schema, lenient=True) == tuple(f"properties.p.{one}" for one in where)
        with pytest.raises(GrammarError):
            compiled(schema, lenient=False)


def test_what_nothing_matches_is_an_error_all_the_same() -> None:
    with pytest.raises(GrammarError, match="nsatisfiable"):
        compiled({"type": "integer", "minimum": 2, "maximum": 1}, lenient=True)


def test_schemas_in_a_grammar_of_rules_are_named_by_their_rule() -> None:
    odd = '{"pattern":"(?=a)","type":"string","x-guidance":{"lenient":true}}'
    text = f'start: a | b\na: %json {odd}\nb: %json {{"type":"string","format":"path"}}'
    grammars = Grammars(FakeText().to_json, FakeText.VOCAB, {END})
    assert grammars.compile(Grammar(GrammarKind.LARK, text)).unchecked == ("a.pattern",)
    with pytest.raises(GrammarError):
        grammars.compile(Grammar(GrammarKind.LARK, text.replace("true", "false")))
