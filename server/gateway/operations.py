"""The gateway's paths: generating calls are queued, others passed on."""

from dataclasses import replace

from aiohttp import web

from server.api.operation import Operation, Parameter
from server.gateway.passing import estimate, pass_call, pass_other, pass_short, pass_through, refuse_method
from server.http.operations import ANTHROPIC, MODEL, OPERATIONS as SERVERS

OWN = (
    *("/v1/requests", "/v1/requests/{id}", "/v1/requests/{id}/cancel", "/metrics", "/load", "/health", "/health/ready"),
    *("/health/live", "/openapi.json", "/", "/chat", "/dashboard/events", "/dashboard/{name}"),
)

# paths below /v1 of calls that generate no text; they take their turn too
SHORT = (
    *("embeddings", "rerank", "score", "classify", "pooling", "moderations"),
    *("audio/speech", "audio/transcriptions", "audio/translations"),
    *("images/generations", "images/edits", "images/variations"),
)
REST_PATH = "/v1/{path:.+}"
REST = Parameter("path", "path", {"type": "string"}, "another path of the backends")


async def pass_message(request: web.Request) -> web.StreamResponse:
    """Answer a call of Anthropic's API by a backend, once its turn has come; raises ApiError as pass_call."""
    return await pass_call(request)


async def pass_count(request: web.Request) -> web.StreamResponse:
    """Count a message's tokens by a backend; raises ApiError as pass_through."""
    return await pass_through(request)


async def pass_tokens(request: web.Request) -> web.StreamResponse:
    """Encode or decode tokens by a backend, at its root; raises ApiError as pass_through."""
    return await pass_through(request)


async def pass_models(request: web.Request) -> web.StreamResponse:
    """Show models of a backend; raises ApiError as pass_through."""
    return await pass_through(request)


async def pass_stored(request: web.Request) -> web.StreamResponse:
    """Show or delete objects stored at a backend; raises ApiError as pass_other."""
    return await pass_other(request)


JSON = ("application/json",)

OPERATIONS = (
    Operation("post", "/v1/chat/completions", pass_call, "createChatCompletion", other=JSON, generates=True),
    Operation("post", "/v1/completions", pass_call, "createCompletion", other=JSON, generates=True),
    Operation("post", "/v1/responses", pass_call, "createResponse", other=JSON, generates=True),
    Operation("post", "/v1/messages", pass_message, "createMessage", other=JSON, generates=True, dialect=ANTHROPIC),
    *(operation for operation in SERVERS if operation.path in OWN),
    *(replace(operation, handler=estimate) for operation in SERVERS if operation.path == "/v1/estimate"),
    Operation(
        "post", "/v1/messages/count_tokens", pass_count, "countTokens", other=JSON, counts=True, dialect=ANTHROPIC
    ),
    Operation("post", "/tokenize", pass_tokens, "tokenize", other=JSON, counts=True),
    Operation("post", "/detokenize", pass_tokens, "detokenize", other=JSON, counts=True),
    Operation("get", "/v1/models", pass_models, "listModels", other=JSON),
    Operation("get", "/v1/models/{model:.+}", pass_models, "showModel", other=JSON, parameters=(MODEL,)),
    *(
        Operation("post", f"/v1/{path}", pass_short, path.replace("/", "_"), other=JSON, rationed=True)
        for path in SHORT
    ),
    Operation("post", REST_PATH, pass_other, "postRest", other=JSON, parameters=(REST,), rationed=True),
    Operation("get", REST_PATH, pass_stored, "getRest", other=JSON, parameters=(REST,)),
    Operation("delete", REST_PATH, pass_stored, "deleteRest", other=JSON, parameters=(REST,)),
    Operation("*", REST_PATH, refuse_method),
)
