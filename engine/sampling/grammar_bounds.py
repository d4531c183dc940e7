"""Which grammars are small enough to be compiled. The compiler recurses, merges and never gives up, in this process.

What is counted is what it would do, found without doing it. Repetitions ({n,m}, minItems, maxLength) have no bound:
they are counted down while an answer is written, and are never written out.
"""

from __future__ import annotations

import json
from fractions import Fraction
from graphlib import CycleError, TopologicalSorter
from typing import Any

from engine.messages import Grammar, GrammarKind
from engine.sampling.grammar_error import GrammarError, require
from engine.sampling.lark import Lark, read
from engine.sampling.schema_merges import Merges, multiple
from engine.sampling.schema_places import Places

MAX_CHARACTERS = 1024 * 1024
MAX_SCHEMAS = 8192
"""Subschemas and values of enums; the compiler has 16 bits to number what it makes of them."""
MAX_REFERENCES = 2048
MAX_DEPTH = 1024
"""Levels of subschemas with references followed; at some 4 kB of the thread's stack each."""
MAX_MULTIPLES = 20_000
"""Sum of the different `multipleOf`, as whole numbers: each makes as many states as it is large."""
MAX_DEFINITIONS = 1024
"""Rules and terminals; the compiler recurses through a chain of them."""
MAX_SYMBOLS = 4096
MAX_TERMINAL = 10_000
"""Names in a terminal when those that it is made of are written out, as the compiler does."""


def require_bounds(grammar: Grammar) -> None:
    """Raises GrammarError for a grammar that is too large, with the bound that it exceeds."""
    require("characters", len(grammar.text), MAX_CHARACTERS, "shorten it")
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            _require_schemas([_decoded(grammar.text)])
        case GrammarKind.LARK:
            lark = read(grammar.text)
            _require_rules(lark)
            _require_schemas(lark.schemas)


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise GrammarError("is nested too deeply; flatten it") from None
    except ValueError:
        return None  # the compiler says what is wrong


def _require_schemas(schemas: list[Any]) -> None:
    known = [Places(schema) for schema in schemas if isinstance(schema, dict)]
    counted = sum(_size(places) for places in known)
    require("subschemas and enum values", counted, MAX_SCHEMAS, "shorten it")
    references = sum(places.references for places in known)
    require("references", references, MAX_REFERENCES, "shorten it")
    multiples: set[Fraction] = set()
    for places in known:
        require("levels once its references are followed", places.depth, MAX_DEPTH, "flatten it")
        merges = Merges(places)
        merges.check()
        multiples |= merges.multiples
        multiples.update(one for schema in places if (one := multiple(schema)) is not None)
    require("as the sum of its multipleOf values", sum(map(_states, multiples)), MAX_MULTIPLES, "use smaller ones")


def _size(places: Places) -> int:
    enums = sum(len(schema["enum"]) for schema in places if isinstance(schema.get("enum"), list))
    return enums + sum(len(definition.places) for definition in places.definitions)


def _states(one: Fraction) -> int:
    """A `multipleOf` as a whole number; 1 for powers of ten, which only have to look at the last digits."""
    while one.denominator > 1:
        one *= 10
    return 1 if str(one.numerator).strip("0") == "1" else one.numerator


def _require_rules(lark: Lark) -> None:
    require("rules and terminals", len(lark.definitions), MAX_DEFINITIONS, "use fewer")
    require("names and literals", lark.symbols, MAX_SYMBOLS, "shorten it")
    largest = max(_written_out(lark).values(), default=0)
    require("names and literals in a terminal once it is written out", largest, MAX_TERMINAL, "shorten it")


def _written_out(lark: Lark) -> dict[str, int]:
    """Names and literals of each terminal, with those inside it; rules are not written out."""
    terminals = {name: names for name, names in lark.definitions.items() if name.isupper()}
    inner = {name: {one for one in names if one in terminals} for name, names in terminals.items()}
    sizes: dict[str, int] = {}
    try:
        for name in TopologicalSorter(inner).static_order():
            sizes[name] = min(1 + sum(sizes.get(one, 1) for one in terminals[name]), 2 * MAX_TERMINAL)
    except CycleError:
        return {}  # which the compiler does not take
    return sizes
