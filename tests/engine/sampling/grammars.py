"""Grammars to test with, and answers to check against them."""

import json
import re
from typing import Any

import jsonschema_rs

from engine.sampling.grammar import HELD_BYTES, MAX_STATES, STATE_BYTES, Grammars
from engine.sampling.params import Grammar, GrammarKind
from models.network.loader import LoadedModel
from models.text import Text

END_TOKEN = 2
"""The tiny model's."""


def schema(value: Any) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


def text(length: int = 10) -> dict[str, Any]:
    """A string that a random model gets to the end of."""
    return {"type": "string", "maxLength": length}


def closed(**properties: Any) -> dict[str, Any]:
    """An object with just these properties."""
    required = list(properties)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


PERSON = schema(closed(name=text(), age={"type": "integer"}))
SCHEMAS: dict[str, dict[str, Any]] = {
    "person": closed(name=text(), age={"type": "integer", "minimum": 0, "maximum": 150}),
    "enum": {"enum": ["red", "green", 3, None, {"deep": [1]}]},
    "list": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 4},
    "nested": closed(items={"type": "array", "maxItems": 2, "items": closed(kind={"enum": ["a", "b"]}, note=text(6))}),
    "choice": {"anyOf": [closed(x={"const": 1}), {"type": "null"}, {"type": "string", "pattern": "^[a-z]{2,5}$"}]},
    "tree": {
        "$defs": {
            "node": closed(value={"type": "boolean"}, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})
        },
        "$ref": "#/$defs/node",
    },
    "formatted": closed(day={"type": "string", "format": "date"}, ratio={"type": "number", "minimum": 0, "maximum": 1}),
}
"""Schemas whose answers are short whatever a model says."""

REGEX = Grammar(GrammarKind.REGEX, "yes|no")
LARK = Grammar(GrammarKind.LARK, 'start: "ab" start | "ab"')


def grammars_of(model: LoadedModel, text: Text, *, size: int = 64, held: int = HELD_BYTES) -> Grammars:
    """Grammars that keep so many of those that are not in use."""
    kept = size * MAX_STATES * STATE_BYTES
    return Grammars(text.to_json, model.vocab_size, model.end_token_ids, kept=kept, held=held)


def check_answer(answer: str, grammar: Grammar) -> None:
    """Assert that a whole answer matches its grammar."""
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            jsonschema_rs.validate(json.loads(grammar.text), json.loads(answer), validate_formats=True)
        case GrammarKind.REGEX:
            assert re.fullmatch(grammar.text, answer)
        case GrammarKind.LARK:
            assert grammar is LARK and re.fullmatch("(ab)+", answer)
