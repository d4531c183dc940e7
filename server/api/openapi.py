"""The OpenAPI 3.1 document, from the types that validate bodies, and GET /openapi.json."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import msgspec
import orjson
from aiohttp import web

from server.api.errors import ErrorBody
from server.api.operation import Operation, Parameter
from server.api.output.sse import HEADER as PROGRESS_HEADER
from server.request_id import HEADER
from server.version import VERSION

PROGRESS = Parameter(
    PROGRESS_HEADER,
    "header",
    {"enum": ["0", "1"], "default": "0"},
    "1: while a stream waits, comments tell its place in line, as with stream_options.include_progress",
)  # of queued operations

REF = "#/components/schemas/{name}"

FORM = {
    "schema": {
        "type": "object",
        "properties": {
            "purpose": {"const": "batch"},
            "file": {"type": "string", "contentMediaType": "application/octet-stream"},
        },
        "required": ["purpose", "file"],
    }
}  # file upload

RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait, with 429", "schema": {"type": "integer", "minimum": 1}}}
_HEADERS = {HEADER: {"$ref": "#/components/headers/RequestId"}}
_ANSWERED_ID = {"description": "The request's own id, or one that was made for it", "schema": {"type": "string"}}
_REQUEST_ID = {
    "name": HEADER,
    "in": "header",
    "description": "The client's own name for the request: the first 128 characters of printable ASCII in it",
    "schema": {"type": "string"},
}


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    described = [operation for operation in operations if operation.name]
    paths: dict[str, Any] = {}
    for operation in described:
        paths.setdefault(operation.template, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Lengthwise",
            "version": VERSION,
            "description": "An LLM inference server that schedules by length, with OpenAI's API. Fields that are not "
            "named here are passed over; null means the default.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": _schemas(_structs(described)),
            "parameters": {"RequestId": _REQUEST_ID},
            "headers": {"RequestId": _ANSWERED_ID},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "A key of --api-key, where there are any"}
            },
        },
    }


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


_EVENT: Mapping[str, Any] = {
    "type": "object",
    "description": "With `stream`: server-sent events. This is one; its `data` is `[DONE]`, or a JSON object of "
    "those in `x-events`.",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}


def _operation(operation: Operation) -> dict[str, Any]:
    parameters = (*operation.parameters, *((PROGRESS,) if operation.generates else ()))
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [*map(_parameter, parameters), {"$ref": "#/components/parameters/RequestId"}],
    }
    if operation.open:
        described["security"] = []
    body = {operation.other_body: FORM} if operation.other_body else _json(operation.body)
    if body:
        described["requestBody"] = {"required": True, "content": body}
    success = _json(operation.reply)
    if operation.events:
        success["text/event-stream"] = {"schema": _EVENT, "x-events": [_ref(event) for event in operation.events]}
    success |= {media: {} for media in operation.other}
    # Any status but 200. Its `type` and `code` say what is wrong; 429 says when to come again.
    error = _json(ErrorBody if operation.dialect is None else operation.dialect.error)
    described["responses"] = {
        "200": {"description": "Success", "headers": _HEADERS, "content": success},
        "default": {"description": "An error", "headers": _HEADERS | RETRY_AFTER, "content": error},
    }
    return described


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.where == "path",
        "description": parameter.what,
        "schema": parameter.schema,
    }


def _json(struct: type[msgspec.Struct] | None) -> dict[str, Any]:
    return {} if struct is None else {"application/json": {"schema": _ref(struct)}}


def _ref(struct: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": REF.format(name=struct.__name__)}
