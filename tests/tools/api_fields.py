"""The tables of fields in docs/api.md: forms and refusals as the server's own types have them, the notes by hand.

`python -m tests.tools.api_fields` writes them anew; test_documents.py compares.
"""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs/api.md"
TAKEN = re.compile(r"(?<=\| field \| form \| note \|\n\|---\|---\|---\|\n)(?:\|.*\n)+")
REFUSED = re.compile(r"(?<=by an error that says what to use: ).*")
BODIES = ("ChatBody", "CompletionBody")
WIDEST = 2**31 - 1
"""A bound at or beyond this one keeps numbers in a machine's word, and tells a reader nothing."""


def filled(page: str) -> str:
    """The page with its form column and its refused fields as the types have them."""
    fields = described()
    page = TAKEN.sub(lambda table: "".join(_row(line, fields) for line in table[0].splitlines()), page)
    return REFUSED.sub(_refused(fields), page)


def described() -> dict[str, Any]:
    """The JSON schema of every field of these bodies, as `lengthwise openapi` prints it."""
    command = [sys.executable, "-m", "lengthwise", "openapi"]
    done = subprocess.run(command, cwd=PAGE.parent.parent, capture_output=True, check=True)
    schemas = json.loads(done.stdout)["components"]["schemas"]
    return {name: form for body in BODIES for name, form in schemas[body]["properties"].items()}


def _row(line: str, fields: Mapping[str, Any]) -> str:
    names, _, note = (cell.strip() for cell in line.strip("|").split("|"))
    forms = dict.fromkeys(_form(fields[name]) for name in re.findall(r"`(\w+)`", names) if name in fields)
    return f"| {names} | {'; '.join(form for form in forms if form)} | {note} |\n"


def _form(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(filter(None, map(_form, schema["anyOf"]))))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    match schema.get("type"):
        case "string":
            return f"text to {schema['maxLength']:,}" if "maxLength" in schema else "text"
        case "array":
            return f"list to {schema['maxItems']:,}" if "maxItems" in schema else "list"
        case "integer" | "number":
            return _range(schema)
        case "boolean":
            return "true, false"
        case "null":
            return ""
    return "object"


def _range(schema: Mapping[str, Any]) -> str:
    kind = "whole" if schema["type"] == "integer" else "number"
    least, most = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
    low = None if least is None or least <= -WIDEST else f"{'above ' if 'exclusiveMinimum' in schema else ''}{least}"
    high = None if most is None or most >= WIDEST else f"{most:,}"
    if low and high:
        return f"{kind}, {low} to {high}"
    return f"{kind}, from {low}" if low else kind


def _refused(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name, form in fields.items() if "description" in form) + "."


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text("utf-8")), "utf-8")
