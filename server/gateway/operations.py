"""The paths of a gateway: calls that generate take their turn, it tells what it knows, the rest is passed on."""

from __future__ import annotations

from aiohttp import web

from server.api.operation import Operation, Parameter
from server.api.operations import ANTHROPIC
from server.api.operations import OPERATIONS as SERVERS
from server.gateway.passing import pass_call, pass_through

OWN = (
    *("/v1/requests", "/v1/requests/{id}", "/v1/requests/{id}/cancel", "/metrics", "/load", "/health", "/health/ready"),
    *("/health/live", "/openapi.json", "/", "/chat", "/dashboard/events", "/dashboard/{name}"),
)
"""Paths that mean the same as those of `lengthwise serve`."""

REST = Parameter("path", "path", {"type": "string"}, "any other path of the backends")


async def pass_message(request: web.Request) -> web.StreamResponse:
    """Answer a call of Anthropic's API by a backend, once its turn has come; raises ApiError as pass_call."""
    return await pass_call(request)


JSON = ("application/json",)

OPERATIONS = (
    Operation("post", "/v1/chat/completions", pass_call, "createChatCompletion", other=JSON, generates=True),
    Operation("post", "/v1/completions", pass_call, "createCompletion", other=JSON, generates=True),
    Operation("post", "/v1/responses", pass_call, "createResponse", other=JSON, generates=True),
    Operation("post", "/v1/messages", pass_message, "createMessage", other=JSON, generates=True, dialect=ANTHROPIC),
    *(operation for operation in SERVERS if operation.path in OWN),
    *(
        Operation(method, "/v1/{path:.+}", pass_through, f"{method}Rest", other=JSON, parameters=(REST,))
        for method in ("get", "post", "delete")
    ),
)
"""The first that matches a call is taken."""
