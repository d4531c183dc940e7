"""Prepares JSON schemas for the grammar library: closes, strips and loosens them."""

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import unquote

Change: TypeAlias = Callable[[Any, str], Any]  # of a schema at a path

NAMED = {"properties", "patternProperties", "$defs", "definitions"}
ENFORCED = NAMED | {"allOf", "anyOf", "oneOf", "prefixItems", "items", "additionalProperties"}
BY_NAME = NAMED | {"dependentSchemas", "dependencies"}
HOLDERS = ENFORCED | BY_NAME | {"not", "if", "then", "else", "contains", "propertyNames"}


def change_inside(schema: Mapping[str, Any], change: Change, path: str, keys: Collection[str]) -> dict[str, Any]:
    """Applied to schemas under these keys."""

    def changed(key: str, value: Any) -> Any:
        where = f"{path}.{key}".lstrip(".")
        if isinstance(value, list):
            return [change(one, f"{where}[{place}]") for place, one in enumerate(value)]
        if key in BY_NAME and isinstance(value, dict):
            return {name: change(one, f"{where}.{name}") for name, one in value.items()}
        return value if key in BY_NAME else change(value, where)

    return {key: changed(key, value) if key in keys else value for key, value in schema.items()}


def close_schema(schema: Any, path: str = "") -> Any:
    """Where an object's properties stand in one place."""
    if not isinstance(schema, dict):
        return schema
    closed = change_inside(schema, close_schema, path, ENFORCED - {"allOf", "patternProperties"})
    properties = closed.get("properties")
    if isinstance(properties, dict) and not closed.keys() & {"allOf", "patternProperties", "if"}:
        closed["required"] = list(properties)
        if closed.get("additionalProperties", True) is True:
            closed["additionalProperties"] = False
    return closed


# enforced formats; others are annotations
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")

NOTES = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}
COUNTS = {end + of for end in ("min", "max") for of in ("Length", "Items", "Properties")}
SOME_NAMES = re.compile(r"\^(?:\((?:\?:)?([\w|-]+)\)|([\w-]+))\$")
DEFINED = {"$defs", "definitions"}


def strip_schema(schema: Any, path: str = "") -> Any:
    if not isinstance(schema, dict):
        return schema
    bare = change_inside(schema, strip_schema, path, HOLDERS)
    for key in COUNTS & bare.keys():
        if isinstance(bare[key], float) and bare[key].is_integer():
            bare[key] = int(bare[key])
    patterns: Any = bare.get("patternProperties")
    properties: Any = bare.get("properties")
    joins = isinstance(patterns, dict) and isinstance(properties, dict)
    for pattern, one in [*patterns.items()] if joins else ():
        found = SOME_NAMES.fullmatch(pattern)
        if found and properties.keys() >= {*(names := (found[1] or found[2]).split("|"))}:
            del patterns[pattern]
            properties.update({name: {"allOf": [properties[name], one]} for name in names})
    return {key: value for key, value in bare.items() if not _VACUOUS.get(key, _is_null)(value, bare)}


def _is_any(schema: Any, kind: str = "") -> bool:
    given = {key: one for key, one in schema.items() if key not in NOTES} if isinstance(schema, dict) else schema
    return given in (True, {}, {"type": kind})


def _asks_nothing(value: Any, _: Mapping[str, Any]) -> bool:
    return isinstance(value, dict) and all(one == [] or _is_any(one) for one in value.values())


_VACUOUS: Mapping[str, Callable[[Any, Mapping[str, Any]], bool]] = {
    "format": lambda value, _: value not in FORMATS,
    "propertyNames": lambda value, _: _is_any(value, "string"),
    **dict.fromkeys(("uniqueItems", "not"), lambda value, _: value is False),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "dependencies"), _asks_nothing),
    "contains": lambda _, schema: schema.get("minContains") == 0 and "maxContains" not in schema,
    "minContains": lambda value, schema: "contains" not in schema or (value == 0 and "maxContains" not in schema),
    "maxContains": lambda _, schema: "contains" not in schema,
    "if": lambda _, schema: all(_is_any(schema.get(other, True)) for other in ("then", "else")),
    **dict.fromkeys(("then", "else"), lambda value, schema: "if" not in schema or _is_any(value)),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), lambda value, _: _is_any(value)),
    "$schema": lambda value, _: "json-schema.org/" not in str(value),
    **dict.fromkeys(("$dynamicAnchor", "$recursiveAnchor", "x-guidance"), lambda _, __: True),
    **dict.fromkeys(("const", "default"), lambda _, __: False),
}  # keyword -> whether it is vacuous; null: always


def _is_null(value: Any, _: Mapping[str, Any]) -> bool:
    return value is None


def loosen_schema(schema: dict[str, Any], takes: Callable[[Any], bool]) -> tuple[dict[str, Any], list[str]]:
    """Without unsupported keywords, and their places."""
    left_out: list[str] = []

    def fits(part: Any) -> bool:
        return takes(_without_references(part, "", schema))

    def loosen(part: Any, path: str) -> Any:
        if fits(part):
            return part
        if not isinstance(part, dict):
            left_out.append(path)
            return True
        kept: dict[str, Any] = {}
        for key, value in part.items():
            one = {key: value}
            if key in ENFORCED and not fits(one):
                one = change_inside(one, loosen, path, ENFORCED)
            if fits(one):
                kept |= one
                continue
            left_out.append(f"{path}.{key}".lstrip("."))
            if key == "oneOf" and fits({"anyOf": one[key]}):
                kept["anyOf"] = one[key]
        if f"{path}.patternProperties".lstrip(".") in left_out:
            kept.pop("additionalProperties", None)  # would forbid the patterns'
        return kept

    if takes(schema):
        return schema, []
    return change_inside(loosen(schema, ""), loosen, "", DEFINED), left_out


def _without_references(schema: Any, path: str, root: Mapping[str, Any]) -> Any:
    if not isinstance(schema, dict):
        return schema
    inside = change_inside(schema, partial(_without_references, root=root), path, HOLDERS)
    return {key: value for key, value in inside.items() if key != "$ref" or follow_reference(value, root) is None}


def follow_reference(reference: Any, root: Any) -> Any:
    """None where it leads nowhere."""
    if not isinstance(reference, str) or not (reference + "/").startswith("#/"):
        return None
    for name in reference.split("/")[1:]:
        name = unquote(name).replace("~1", "/").replace("~0", "~")
        if isinstance(root, list) and name.isdecimal() and int(name) < len(root):
            root = root[int(name)]
        else:
            root = root.get(name) if isinstance(root, dict) else None
    return root
