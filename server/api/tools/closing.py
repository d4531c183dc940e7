"""Closed JSON schemas: objects with the properties that are named, all of them, and no others.

An open schema lets a small model invent properties until its limit; OpenAI's `strict` demands closed ones.
"""

from __future__ import annotations

from typing import Any

LISTED = ("anyOf", "oneOf", "prefixItems")
NAMED = ("properties", "$defs", "definitions")
INNER = ("items", "additionalProperties")


def close_schema(schema: Any) -> Any:
    """The schema, with all its objects closed whose properties stand in one place."""
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for key in LISTED:
        if isinstance(closed.get(key), list):
            closed[key] = [close_schema(one) for one in closed[key]]
    for key in NAMED:
        if isinstance(closed.get(key), dict):
            closed[key] = {name: close_schema(one) for name, one in closed[key].items()}
    for key in INNER:
        if key in closed:
            closed[key] = close_schema(closed[key])
    properties = closed.get("properties")
    if isinstance(properties, dict) and not closed.keys() & {"allOf", "patternProperties", "if"}:
        closed["required"] = list(properties)
        if closed.get("additionalProperties", True) is True:
            closed["additionalProperties"] = False
    return closed
