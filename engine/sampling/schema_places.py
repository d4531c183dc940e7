"""A JSON schema as a graph: its subschemas, and which of them it refers to. Nothing is expanded, and nothing recurses.

What only stands in `$defs` counts where it is referred to, as for the compiler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any, TypeAlias
from urllib.parse import unquote

import numpy as np

from engine.sampling.grammar_error import GrammarError

Schema: TypeAlias = dict[str, Any]

NAMED = ("properties", "patternProperties", "dependentSchemas")
LISTED = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
SINGLE = (
    *("items", "additionalItems", "unevaluatedItems", "contains", "not", "if", "then", "else"),
    *("additionalProperties", "unevaluatedProperties", "propertyNames"),
)


@dataclass(frozen=True, slots=True)
class Definition:
    """The root of a schema, or what a reference leads to, as far as the next reference."""

    places: tuple[Schema, ...]
    """Its subschemas, itself the first."""
    depth: int
    """Levels of subschemas, one in another."""
    references: tuple[str, ...]


class Places:
    """Everything of a schema that a compiler meets. Raises GrammarError for references that lead out of it."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._anchors: dict[str, Schema] = {"": root}
        self._name_anchors()
        self.definitions: list[Definition] = []
        self._numbers: dict[int, int] = {}
        pending = [root]
        while pending:
            schema = pending.pop()
            if id(schema) not in self._numbers:
                self._numbers[id(schema)] = len(self.definitions)
                definition = _definition(schema)
                self.definitions.append(definition)
                pending += [target for one in definition.references if (target := self.target(one)) is not None]

    def __iter__(self) -> Iterator[Schema]:
        for definition in self.definitions:
            yield from definition.places

    @property
    def references(self) -> int:
        return sum(len(definition.references) for definition in self.definitions)

    @property
    def depth(self) -> int:
        """Levels of the deepest way through the references, with each definition once: recursion is no depth."""
        circles = self._circles()
        before: dict[int, set[int]] = {circle: set() for circle in circles}
        for definition, circle in zip(self.definitions, circles, strict=True):
            before[circle] |= {circles[number] for number in self._leads_to(definition)} - {circle}
        depths = dict.fromkeys(before, 0)
        for definition, circle in zip(self.definitions, circles, strict=True):
            depths[circle] += definition.depth
        for circle in TopologicalSorter(before).static_order():
            depths[circle] += max((depths[one] for one in before[circle]), default=0)
        return max(depths.values())

    def target(self, reference: str) -> Schema | None:
        """The schema that a reference means; None where it means true or false."""
        base, _, path = reference.partition("#")
        if base and base not in self._anchors:
            raise GrammarError(f"$ref {reference!r} leads out of the schema; put what it means into $defs")
        found: Any = self._anchors[base]
        if path and not path.startswith("/"):
            found = self._anchors.get(f"#{unquote(path)}")
        else:
            for part in path.split("/")[1:]:
                found = _inside(found, unquote(part).replace("~1", "/").replace("~0", "~"))
        if not isinstance(found, dict | bool):
            raise GrammarError(f"$ref {reference!r} leads nowhere; put what it means into $defs")
        return found if isinstance(found, dict) else None

    def _leads_to(self, definition: Definition) -> list[int]:
        targets = [self.target(one) for one in definition.references]
        return [self._numbers[id(target)] for target in targets if target is not None]

    def _circles(self) -> list[int]:
        """For each definition the number of the circle of references that it is in, which for most is it alone."""
        from scipy.sparse import coo_array  # whose import takes longer than that of the HTTP layer
        from scipy.sparse.csgraph import connected_components

        edges = [(number, other) for number, one in enumerate(self.definitions) for other in self._leads_to(one)] or [
            (0, 0)
        ]
        rows, columns = zip(*edges, strict=True)
        size = len(self.definitions)
        graph = coo_array((np.ones(len(edges), np.int8), (rows, columns)), shape=(size, size)).tocsr()
        _, circles = connected_components(graph, connection="strong")
        return [int(circle) for circle in circles]

    def _name_anchors(self) -> None:
        """References may go by name, which only the root may change the meaning of: a base below it moves all paths."""
        pending: list[Any] = [self._root]
        while pending:
            value = pending.pop()
            if isinstance(value, list):
                pending += value
            elif isinstance(value, dict):
                self._name(value)
                pending += value.values()

    def _name(self, schema: Schema) -> None:
        if isinstance(name := schema.get("$id"), str):
            if schema is not self._root:
                raise GrammarError("$id is only taken at the schema's root; refer to what is inside by #/$defs/NAME")
            self._anchors[name.removesuffix("#")] = schema
        for word in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := schema.get(word), str):
                self._anchors[f"#{name}"] = schema


def subschemas(schema: Mapping[str, Any]) -> Iterator[Schema]:
    """The schemas directly in a schema."""
    for word in NAMED:
        if isinstance(named := schema.get(word), dict):
            yield from (one for one in named.values() if isinstance(one, dict))
    for word in LISTED:
        if isinstance(listed := schema.get(word), list):
            yield from (one for one in listed if isinstance(one, dict))
    for word in SINGLE:
        if isinstance(one := schema.get(word), dict):
            yield one


def _definition(root: Schema) -> Definition:
    level, places, depth = [root], list[Schema](), 0
    while level:
        places += level
        depth += 1
        level = [inner for schema in level for inner in subschemas(schema)]
    references = [
        one for schema in places for word in ("$ref", "$dynamicRef") if isinstance(one := schema.get(word), str)
    ]
    return Definition(tuple(places), depth, tuple(references))


def _inside(value: Any, name: str) -> Any:
    """One step of a JSON pointer; None where it leads nowhere."""
    if isinstance(value, list):
        return value[int(name)] if name.isascii() and name.isdigit() and int(name) < len(value) else None
    return value.get(name) if isinstance(value, dict) else None
