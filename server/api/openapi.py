"""The OpenAPI 3.1 document, from the types that validate bodies, and GET /openapi.json."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import orjson
from aiohttp import web

from server.api.errors import ErrorBody
from server.api.input.promise import HEADER as PROMISE_HEADER
from server.api.operation import Operation, Parameter
from server.api.output.sse import HEADER as PROGRESS_HEADER
from server.version import VERSION

NOTED = "1: while a stream waits, comments tell its place in line, as with stream_options.include_progress"
PROGRESS = Parameter(PROGRESS_HEADER, "header", {"enum": ["0", "1"], "default": "0"}, NOTED)
PRECEDED = "the field `promise` as JSON; ignored where the body has that field"
PROMISE = Parameter(PROMISE_HEADER, "header", {"type": "string"}, PRECEDED)
QUEUED = (PROGRESS, PROMISE)  # of operations that generate

REF = "#/components/schemas/{name}"

SAME = Path(__file__).with_suffix(".toml")  # in each document
PARTS: Mapping[str, Any] = tomllib.loads(SAME.read_text("utf-8"))["parts"]  # of operations


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    described = [operation for operation in operations if operation.name]
    told = tomllib.loads(SAME.read_text("utf-8"))
    del told["parts"]
    told["info"]["version"] = VERSION
    for operation in described:
        told["paths"].setdefault(operation.template, {})[operation.method] = _operation(operation)
    told["components"]["schemas"] = _schemas(_structs(described))
    return told


def encode_document(operations: Iterable[Operation]) -> bytes:
    """As served and kept in docs/."""
    return orjson.dumps(document(operations), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


DOCUMENT = web.AppKey("openapi", bytes)


async def openapi(request: web.Request) -> web.Response:
    """Send this document."""
    return web.Response(body=request.app[DOCUMENT], content_type="application/json")


def _structs(operations: Iterable[Operation]) -> frozenset[type[msgspec.Struct]]:
    types: set[type[msgspec.Struct]] = {ErrorBody}
    for operation in operations:
        errors = () if operation.dialect is None else (operation.dialect.error,)
        types |= {struct for struct in (operation.body, operation.reply, *operation.events, *errors) if struct}
    return frozenset(types)


@cache  # 0.03 s
def _schemas(types: frozenset[type[msgspec.Struct]]) -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components(types, ref_template=REF)
    for struct in types:
        schemas[struct.__name__].update({"allOf": [struct.told]} if hasattr(struct, "told") else {})
    return dict(sorted(schemas.items()))


def _operation(operation: Operation) -> dict[str, Any]:
    given = (*operation.parameters, *(QUEUED if operation.generates else ()))
    parameters = [*map(_parameter, given), {"$ref": "#/components/parameters/RequestId"}]
    # the handler's docstring up to its errors
    summary = re.split(r"; raises |\.?\n|\.$", operation.handler.__doc__ or "", maxsplit=1)[0]
    described: dict[str, Any] = {"operationId": operation.name, "summary": summary, "parameters": parameters}
    if operation.open:
        described["security"] = []
    body = {operation.other_body: PARTS["form"]} if operation.other_body else _json(operation.body)
    if body:
        described["requestBody"] = {"required": True, "content": body}
    success = _json(operation.reply)
    if operation.events:
        success["text/event-stream"] = {"schema": PARTS["event"], "x-events": [*map(_ref, operation.events)]}
    success |= {media: {} for media in operation.other}
    # of any status but 200
    error = _json(ErrorBody if operation.dialect is None else operation.dialect.error)
    fine = {"description": "Success", "headers": PARTS["headers"], "content": success}
    failed = {"description": "An error", "headers": PARTS["headers"] | PARTS["retry"], "content": error}
    described["responses"] = {"200": fine, "default": failed}
    return described


def _parameter(one: Parameter) -> dict[str, Any]:
    told = {"name": one.name, "in": one.where, "required": one.where == "path"}
    return told | {"description": one.what, "schema": one.schema}


def _json(struct: type[msgspec.Struct] | None) -> dict[str, Any]:
    return {} if struct is None else {"application/json": {"schema": _ref(struct)}}


def _ref(struct: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": REF.format(name=struct.__name__)}
