"""The OpenAPI document: it is what the types say, it tells all there is, and it is served."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from server.api.input.schema import ChatBody
from server.api.openapi import document, encode_document
from server.cli.main import main
from server.http.operations import OPERATIONS
from tests.server.live import Live


def test_the_command_writes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["openapi"]) == 0
    assert capsys.readouterr().out.encode() == encode_document(OPERATIONS)


async def test_it_is_served(live: Live) -> None:
    reply = await live.get("/openapi.json")
    assert reply.headers["Content-Type"].startswith("application/json") and reply.json == document(OPERATIONS)


async def test_every_path_in_it_has_a_route_and_every_route_but_the_pages_own_is_in_it(live: Live) -> None:
    told = {(method.upper(), path) for path, methods in document(OPERATIONS)["paths"].items() for method in methods}
    routes = {(one.method, one.resource.canonical) for one in live.app.router.routes() if one.resource is not None}
    own = {("GET", "/dashboard/events"), ("GET", "/dashboard/{name}"), ("GET", "/chat")}
    assert told == {(method, path) for method, path in routes if method != "HEAD"} - own


def test_every_field_of_a_body_is_described_with_its_bounds() -> None:
    schema = document(OPERATIONS)["components"]["schemas"]["ChatBody"]
    assert {field.name for field in msgspec.structs.fields(ChatBody)} == set(schema["properties"])
    refused = schema["properties"]["use_beam_search"]
    assert refused == {"description": "is not supported; use n and a temperature", "enum": ["", [], False, None, {}]}
    assert schema["required"] == ["messages"]
    numbers = [one for one in schema["properties"]["top_p"]["anyOf"] if one["type"] == "number"]
    assert numbers == [{"type": "number", "minimum": 0, "maximum": 1}]


def test_the_header_with_a_promise_is_described_with_what_precedes_it() -> None:
    paths = document(OPERATIONS)["paths"]
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/estimate"):
        (header,) = (one for one in paths[path]["post"]["parameters"] if one.get("name") == "x-lengthwise-promise")
        assert "ignored where the body has that field" in header["description"]


def test_every_list_and_every_mapping_of_a_body_has_a_bound() -> None:
    """Lists of token ids and of prompts had none, and two million ids were read before they were refused."""
    schemas = document(OPERATIONS)["components"]["schemas"]
    bodies = {operation.body.__name__ for operation in OPERATIONS if operation.body is not None}
    assert [path for name in sorted(bodies) for path in _unbounded(schemas[name], name, schemas)] == []


def _unbounded(schema: Any, path: str, schemas: dict[str, Any]) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "array" and "maxItems" not in schema and "items" in schema:
        yield path
    if isinstance(schema.get("additionalProperties"), dict) and "maxProperties" not in schema:
        yield path
    if "$ref" in schema:
        yield from _unbounded(schemas[schema["$ref"].rpartition("/")[2]], path, schemas)
    for name, inner in (schema.get("properties") or {}).items():
        yield from _unbounded(inner, f"{path}.{name}", schemas)
    for name in ("anyOf", "oneOf"):
        for inner in schema.get(name, ()):
            yield from _unbounded(inner, path, schemas)
    yield from _unbounded(schema.get("items"), f"{path}[]", schemas)
