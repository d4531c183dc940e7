"""The API: every path and method, from which routes, the OpenAPI document, admission and access are made."""

from __future__ import annotations

from typing import Any

from aiohttp.typedefs import Handler

from server.api import counting, embeddings, health, served_model
from server.api.batches import asker
from server.api.batches import endpoint as batches
from server.api.calls import register
from server.api.calls.request_status import RequestList, RequestStatus
from server.api.chat import chat_completions
from server.api.completions import completions
from server.api.input.schema import ChatBody, CompletionBody
from server.api.messages import body as messages_body
from server.api.messages import reply as messages_reply
from server.api.messages.endpoint import count_tokens, messages
from server.api.openapi import openapi
from server.api.operation import Body, Dialect, Operation, Parameter
from server.api.output.expectation import Expectation
from server.api.output.reply import ChatChunk, ChatReply, CompletionReply
from server.api.responses import endpoint as kept
from server.api.responses import reply as responses_reply
from server.api.responses.body import ResponsesBody
from server.dashboard.feed import index, send_chat, send_feed, send_file
from server.observe.metrics import metrics

ANTHROPIC = Dialect(messages_reply.MessageError, messages_reply.message_error, "request-id")
NAME = {"type": "string", "minLength": 1}

MODEL = Parameter("model", "path", NAME, "one of the names in /v1/models")
CALL = Parameter("id", "path", NAME, "an answer's id, or the X-Request-Id of its request")
RESPONSE = Parameter("id", "path", NAME, "a response's id")
FILE = Parameter("id", "path", NAME, "a file's id")
BATCH = Parameter("id", "path", NAME, "a batch's id")


def _number(name: str, least: int, most: int, what: str, **schema: int) -> Parameter:
    return Parameter(name, "query", {"type": "integer", "minimum": least, "maximum": most, **schema}, what)


EXPLAIN = _number("explain", 0, 1, "1: tell what it waits for", default=0)
LIMIT = _number("limit", 1, 1000, "how many at most", default=100)
ROW = _number(
    "row", 0, register.MOST_ROW, "only the call under way that has this row of the dashboard, and what it waits for"
)
PAGE = (
    _number("limit", 1, asker.MOST, "how many at most", default=20),
    Parameter("after", "query", {"type": "string"}, "the id of the one before"),
)
FORM = (404, 408, 413, 415, 507)


def _generate(path: str, handler: Handler, name: str, body: Body, reply: Body, *events: Body, **more: Any) -> Operation:
    return Operation("post", path, handler, name, body, reply, events, generates=True, **more)


def _count(path: str, handler: Handler, name: str, body: Body, reply: Body, **more: Any) -> Operation:
    return Operation("post", path, handler, name, body, reply, counts=True, **more)


def _one(method: str, path: str, handler: Handler, name: str, reply: Body, *parameters: Parameter) -> Operation:
    """An operation on one of several things, which may not be there."""
    return Operation(method, path, handler, name, reply=reply, parameters=parameters, errors=(404,))


OPERATIONS = (
    _generate("/v1/chat/completions", chat_completions, "createChatCompletion", ChatBody, ChatReply, ChatChunk),
    _generate("/v1/completions", completions, "createCompletion", CompletionBody, CompletionReply, CompletionReply),
    _generate(
        "/v1/responses",
        kept.responses,
        "createResponse",
        ResponsesBody,
        responses_reply.ResponseObject,
        *responses_reply.EVENTS,
        errors=(404,),
    ),
    _one("get", "/v1/responses/{id}", kept.show_response, "showResponse", responses_reply.ResponseObject, RESPONSE),
    _one(
        "delete",
        "/v1/responses/{id}",
        kept.delete_response,
        "deleteResponse",
        responses_reply.DeletedResponse,
        RESPONSE,
    ),
    _generate(
        "/v1/messages",
        messages,
        "createMessage",
        messages_body.MessagesBody,
        messages_reply.MessageObject,
        *messages_reply.EVENTS,
        dialect=ANTHROPIC,
    ),
    _count(
        "/v1/messages/count_tokens",
        count_tokens,
        "countMessageTokens",
        messages_body.CountBody,
        messages_reply.TokenCount,
        errors=(404,),
        dialect=ANTHROPIC,
    ),
    Operation(
        "post",
        "/v1/embeddings",
        embeddings.embeddings,
        "createEmbedding",
        embeddings.EmbeddingBody,
        embeddings.EmbeddingList,
        rationed=True,
        errors=(404,),
    ),
    _count("/v1/estimate", counting.estimate, "estimate", counting.AnyBody, Expectation),
    Operation(
        "post",
        "/v1/files",
        batches.upload_file,
        "createFile",
        reply=batches.FileObject,
        other_body="multipart/form-data",
        errors=FORM,
    ),
    _one("get", "/v1/files", batches.list_files, "listFiles", batches.FileList, *PAGE),
    _one("get", "/v1/files/{id}", batches.show_file, "showFile", batches.FileObject, FILE),
    _one("delete", "/v1/files/{id}", batches.delete_file, "deleteFile", batches.DeletedFile, FILE),
    Operation(
        "get",
        "/v1/files/{id}/content",
        batches.send_content,
        "downloadFile",
        other=("application/jsonl",),
        parameters=(FILE,),
        errors=(404,),
    ),
    Operation(
        "post",
        "/v1/batches",
        batches.create_batch,
        "createBatch",
        batches.BatchBody,
        batches.BatchObject,
        errors=(404, 507),
    ),
    _one("get", "/v1/batches", batches.list_batches, "listBatches", batches.BatchList, *PAGE),
    _one("get", "/v1/batches/{id}", batches.show_batch, "showBatch", batches.BatchObject, BATCH),
    Operation(
        "post",
        "/v1/batches/{id}/cancel",
        batches.cancel_batch,
        "cancelBatch",
        reply=batches.BatchObject,
        parameters=(BATCH,),
        errors=(404, 507),
    ),
    Operation("get", "/v1/models", served_model.list_models, "listModels", reply=served_model.ModelList),
    _one("get", "/v1/models/{model:.+}", served_model.show_model, "showModel", served_model.ModelCard, MODEL),
    Operation(
        "get", "/v1/requests", register.list_requests, "listRequests", reply=RequestList, parameters=(LIMIT, ROW)
    ),
    _one("get", "/v1/requests/{id}", register.show_request, "showRequest", RequestStatus, CALL, EXPLAIN),
    _one("post", "/v1/requests/{id}/cancel", register.cancel_request, "cancelRequest", RequestStatus, CALL),
    _count("/tokenize", counting.tokenize, "tokenize", counting.TokenizeBody, counting.Tokens, errors=(404,)),
    _count(
        "/detokenize", counting.detokenize, "detokenize", counting.DetokenizeBody, counting.Detokenized, errors=(404,)
    ),
    Operation("get", "/metrics", metrics, "metrics", other=("text/plain",), errors=(404,)),
    Operation("get", "/load", health.load, "load", reply=health.Load),
    Operation("get", "/health", health.health, "health", reply=health.Readiness),
    Operation("get", "/health/ready", health.ready, "ready", reply=health.Health, open=True),
    Operation("get", "/health/live", health.live, "live", reply=health.Health, open=True),
    Operation("get", "/openapi.json", openapi, "openapi", other=("application/json",)),
    Operation("get", "/", index, "index", other=("application/json", "text/html")),
    Operation("get", "/chat", send_chat),
    Operation("get", "/dashboard/events", send_feed),
    Operation("get", "/dashboard/{name}", send_file),
)
