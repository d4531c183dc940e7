"""How much merging a JSON schema asks for, counted without doing it.

Where `allOf`, `anyOf`, `$ref` and plain keywords stand side by side, a compiler writes out each way to choose their
alternatives, and merges the parts of each way: their properties and items as well, again and again below.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import lcm
from typing import Any, TypeAlias

from engine.sampling.grammar_error import require
from engine.sampling.schema_places import Places, Schema

MAX_ALTERNATIVES = 512
MAX_PARTS = 8192
MAX_NESTING = 64

ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment"}
    | {"$defs", "definitions", "$schema", "$id", "$anchor", "$dynamicAnchor", "discriminator", "x-guidance"}
)
JOINING = frozenset({"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf"})

Parts: TypeAlias = Counter[int]
"""Schemas that hold at the same time, by id, with how often each is repeated."""
SIMPLER = "merge fewer schemas with allOf, anyOf and $ref"


class Merges:
    """Counts, and raises GrammarError as soon as a bound is passed, so that it never takes long itself."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._by_id: dict[int, Schema] = {id(schema): schema for schema in places}
        self._ways: dict[int, list[Parts]] = {}
        self._open: set[int] = set()
        self._parts = 0
        self._done: set[frozenset[tuple[int, int]]] = set()
        self.multiples: set[Fraction] = set()
        """The `multipleOf` that merged ones make together."""

    def check(self) -> None:
        """Look at every place where something is merged."""
        for schema in self._places:
            if _merges(schema):
                self._merge(Counter({id(schema): 1}))

    def _merge(self, schemas: Parts) -> None:
        """These schemas, and what is merged inside them in turn."""
        pending = [schemas]
        while pending:
            together = pending.pop()
            if (key := frozenset(together.items())) not in self._done:
                self._done.add(key)
                for parts in self._together(together):
                    self._note_multiples(parts)
                    pending += self._inside(parts)

    def _together(self, schemas: Parts) -> list[Parts]:
        """All ways to choose alternatives of schemas that hold at the same time."""
        ways = [Parts()]
        for number, times in schemas.items():
            own = self._alternatives(number)
            if len(own) == 1:  # the rest would be one multiplication after another
                own, times = [Counter({part: count * times for part, count in own[0].items()})], 1
            for _ in range(times):
                ways = self._product(ways, own)
        return ways

    def _alternatives(self, number: int) -> list[Parts]:
        """The ways through one schema. Where it comes to itself again, the compiler says that it cannot."""
        if number in self._ways or number in self._open:
            return self._ways.get(number, [Counter({number: 1})])
        self._open.add(number)
        require("schemas merged one inside another", len(self._open), MAX_NESTING, SIMPLER)
        schema = self._by_id[number]
        ways = [Counter({number: 1})]
        for word in ("$ref", "$dynamicRef"):
            target = self._places.target(schema[word]) if isinstance(schema.get(word), str) else None
            if target is not None:
                ways = self._product(ways, self._alternatives(id(target)))
        for one in _listed(schema, "allOf"):
            ways = self._product(ways, self._alternatives(id(one)))
        for word in ("anyOf", "oneOf"):
            if several := _listed(schema, word):
                ways = self._product(ways, [way for one in several for way in self._alternatives(id(one))])
        self._open.remove(number)
        self._ways[number] = ways
        return ways

    def _product(self, some: list[Parts], others: list[Parts]) -> list[Parts]:
        require("alternatives in one place once it is merged", len(some) * len(others), MAX_ALTERNATIVES, SIMPLER)
        ways = [one + other for one in some for other in others]
        self._parts += sum(way.total() for way in ways)
        require("parts once its schemas are merged", self._parts, MAX_PARTS, SIMPLER)
        return ways

    def _inside(self, parts: Parts) -> Iterable[Parts]:
        """The schemas that several parts have for a property or an item, by its name or place."""
        if parts.total() > 1:
            schemas = {number: self._by_id[number] for number in parts}
            for name in {name for schema in schemas.values() for name in _names(schema)}:
                inner = Parts()
                for number, schema in schemas.items():
                    for one in _schemas_of(schema, name):
                        inner[id(one)] += parts[number]
                if inner.total() > 1:
                    yield inner

    def _note_multiples(self, parts: Parts) -> None:
        found = [one for number in parts if (one := multiple(self._by_id[number])) is not None]
        if len(found) > 1:
            below = lcm(*(one.denominator for one in found))
            self.multiples.add(Fraction(lcm(*(int(one * below) for one in found)), below))


def multiple(schema: Mapping[str, Any]) -> Fraction | None:
    """A schema's `multipleOf`, exactly; None where there is none that could hold."""
    value = schema.get("multipleOf")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        return None
    return Fraction(str(value))


def _merges(schema: Schema) -> bool:
    """Whether a schema consists of more than one thing."""
    own = any(word not in ANNOTATIONS and word not in JOINING for word in schema)
    joined = len(_listed(schema, "allOf")) + sum(word in schema for word in JOINING - {"allOf"})
    return own + joined > 1


def _listed(schema: Schema, word: str) -> list[Schema]:
    value = schema.get(word)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _names(schema: Schema) -> Iterable[str | int]:
    """Properties by name, items by place, and -1 for all the others."""
    named = schema.get("properties")
    yield from named if isinstance(named, dict) else ()
    yield from range(-1, len(_listed(schema, "prefixItems")))


def _schemas_of(schema: Schema, name: str | int) -> Iterable[Schema]:
    """What one schema says of a property or an item."""
    if isinstance(name, int):
        first, rest = _listed(schema, "prefixItems"), schema.get("items")
        found = [first[name]] if 0 <= name < len(first) else [rest]
    elif name in (named := schema.get("properties") or {}):
        found = [named[name]]
    else:
        found = [schema.get("additionalProperties"), *(schema.get("patternProperties") or {}).values()]
    return [one for one in found if isinstance(one, dict)]
