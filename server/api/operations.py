"""The API: every path and method, from which routes, the OpenAPI document, admission and access are made."""

from __future__ import annotations

from server.api.calls.request_status import RequestList, RequestStatus
from server.api.chat import chat_completions
from server.api.completions import completions
from server.api.health import Health, Readiness, live, ready
from server.api.input.schema import ChatBody, CompletionBody
from server.api.models import ModelCard, ModelList, list_models, show_model
from server.api.openapi import openapi
from server.api.operation import Operation, Parameter
from server.api.output.reply import ChatChunk, ChatReply, CompletionReply
from server.api.requests import cancel_request, list_requests, show_request
from server.api.responses.body import ResponsesBody
from server.api.responses.endpoint import responses
from server.api.responses.reply import ItemEvent, PartEvent, ResponseEvent, ResponseObject, TextDelta, TextDone
from server.api.tokenize import DetokenizeBody, Detokenized, TokenizeBody, Tokens, detokenize, tokenize
from server.dashboard.feed import send_feed
from server.http.page import index, send_file
from server.observe.metrics import metrics

MODEL = Parameter("model", "path", {"type": "string", "minLength": 1}, "one of the names in /v1/models")
CALL = Parameter("id", "path", {"type": "string", "minLength": 1}, "an answer's id, or the X-Request-Id of its request")
LIMIT = Parameter(
    "limit", "query", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}, "how many at most"
)

OPERATIONS = (
    Operation(
        "post",
        "/v1/chat/completions",
        chat_completions,
        "createChatCompletion",
        "The assistant's next turn in a conversation",
        ChatBody,
        ChatReply,
        events=(ChatChunk,),
        generates=True,
    ),
    Operation(
        "post",
        "/v1/completions",
        completions,
        "createCompletion",
        "Continuations of prompts",
        CompletionBody,
        CompletionReply,
        events=(CompletionReply,),
        generates=True,
    ),
    Operation(
        "post",
        "/v1/responses",
        responses,
        "createResponse",
        "Text in, text out, as OpenAI's responses; nothing is stored",
        ResponsesBody,
        ResponseObject,
        events=(ResponseEvent, ItemEvent, PartEvent, TextDelta, TextDone),
        generates=True,
    ),
    Operation(
        "get",
        "/v1/models",
        list_models,
        "listModels",
        "The model that is served, under each of its names",
        reply=ModelList,
    ),
    Operation(
        "get",
        "/v1/models/{model:.+}",
        show_model,
        "showModel",
        "One name of the model",
        reply=ModelCard,
        parameters=(MODEL,),
        errors=(404,),
    ),
    Operation(
        "get",
        "/v1/requests",
        list_requests,
        "listRequests",
        "The caller's requests, the latest first: those under way, then those that have ended lately",
        reply=RequestList,
        parameters=(LIMIT,),
    ),
    Operation(
        "get",
        "/v1/requests/{id}",
        show_request,
        "showRequest",
        "How a request stands: its place in line, expected wait, tokens and times",
        reply=RequestStatus,
        parameters=(CALL,),
        errors=(404,),
    ),
    Operation(
        "post",
        "/v1/requests/{id}/cancel",
        cancel_request,
        "cancelRequest",
        "Break a request off; one that has ended stays as it is",
        reply=RequestStatus,
        parameters=(CALL,),
        errors=(404,),
    ),
    Operation(
        "post",
        "/tokenize",
        tokenize,
        "tokenize",
        "A prompt or messages as tokens",
        TokenizeBody,
        Tokens,
        errors=(404,),
    ),
    Operation(
        "post",
        "/detokenize",
        detokenize,
        "detokenize",
        "Tokens as text",
        DetokenizeBody,
        Detokenized,
        errors=(404,),
    ),
    Operation(
        "get",
        "/metrics",
        metrics,
        "metrics",
        "Counters, gauges and histograms for Prometheus",
        other=("text/plain",),
        errors=(404,),
    ),
    Operation("get", "/health", ready, "health", "The same as /health/ready", reply=Readiness),
    Operation("get", "/health/ready", ready, "ready", "Whether a request would be taken", reply=Readiness),
    Operation(
        "get",
        "/health/live",
        live,
        "live",
        "Whether the process answers; the only one that needs no key",
        reply=Health,
        open=True,
    ),
    Operation("get", "/openapi.json", openapi, "openapi", "This document", other=("application/json",)),
    Operation(
        "get",
        "/",
        index,
        "index",
        "The dashboard for browsers, the endpoints for all others",
        other=("application/json", "text/html"),
    ),
    Operation("get", "/dashboard/events", send_feed),
    Operation("get", "/dashboard/{name}", send_file),
)
