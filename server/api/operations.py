"""The API: every path and method, from which routes, the OpenAPI document, admission and access are made."""

from __future__ import annotations

from server.api.batches.asker import MOST
from server.api.batches.endpoint import (
    BatchBody,
    BatchList,
    BatchObject,
    cancel_batch,
    create_batch,
    list_batches,
    show_batch,
)
from server.api.batches.files import (
    DeletedFile,
    FileList,
    FileObject,
    delete_file,
    list_files,
    send_content,
    show_file,
    upload_file,
)
from server.api.calls.request_status import RequestList, RequestStatus
from server.api.chat import chat_completions
from server.api.completions import completions
from server.api.embeddings.endpoint import EmbeddingBody, EmbeddingList, embeddings
from server.api.estimate import AnyBody, estimate
from server.api.health import Health, Load, Readiness, health, live, load, ready
from server.api.input.schema import ChatBody, CompletionBody
from server.api.messages.body import CountBody, MessagesBody
from server.api.messages.endpoint import count_tokens, messages
from server.api.messages.reply import (
    BlockDelta,
    BlockStart,
    BlockStop,
    MessageDelta,
    MessageError,
    MessageObject,
    MessageStart,
    MessageStop,
    TokenCount,
    message_error,
)
from server.api.models import ModelCard, ModelList, list_models, show_model
from server.api.openapi import openapi
from server.api.operation import Dialect, Operation, Parameter
from server.api.output.expectation import Expectation
from server.api.output.reply import ChatChunk, ChatReply, CompletionReply
from server.api.requests import MOST_ROW, cancel_request, list_requests, show_request
from server.api.responses.body import ResponsesBody
from server.api.responses.endpoint import delete_response, responses, show_response
from server.api.responses.reply import (
    ArgumentsDelta,
    ArgumentsDone,
    DeletedResponse,
    InputDelta,
    InputDone,
    ItemEvent,
    PartEvent,
    ResponseEvent,
    ResponseObject,
    TextDelta,
    TextDone,
)
from server.api.tokenize import DetokenizeBody, Detokenized, TokenizeBody, Tokens, detokenize, tokenize
from server.dashboard.feed import send_feed
from server.http.page import index, send_chat, send_file
from server.observe.metrics import metrics

ANTHROPIC = Dialect(MessageError, message_error, "request-id")

MODEL = Parameter("model", "path", {"type": "string", "minLength": 1}, "one of the names in /v1/models")
CALL = Parameter("id", "path", {"type": "string", "minLength": 1}, "an answer's id, or the X-Request-Id of its request")
RESPONSE = Parameter("id", "path", {"type": "string", "minLength": 1}, "a response's id")
EXPLAIN = Parameter(
    "explain", "query", {"type": "integer", "minimum": 0, "maximum": 1, "default": 0}, "1: tell what it waits for"
)
LIMIT = Parameter(
    "limit", "query", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}, "how many at most"
)
ROW = Parameter(
    "row",
    "query",
    {"type": "integer", "minimum": 0, "maximum": MOST_ROW},
    "only the call under way that has this row of the dashboard, and what it waits for",
)

FILE = Parameter("id", "path", {"type": "string", "minLength": 1}, "a file's id")
BATCH = Parameter("id", "path", {"type": "string", "minLength": 1}, "a batch's id")
PAGE = (
    Parameter("limit", "query", {"type": "integer", "minimum": 1, "maximum": MOST, "default": 20}, "how many at most"),
    Parameter("after", "query", {"type": "string"}, "the id of the one before"),
)
FORM = (404, 408, 413, 415, 507)

OPERATIONS = (
    Operation(
        "post",
        "/v1/chat/completions",
        chat_completions,
        "createChatCompletion",
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
        ResponsesBody,
        ResponseObject,
        events=(
            ResponseEvent,
            ItemEvent,
            PartEvent,
            TextDelta,
            TextDone,
            ArgumentsDelta,
            ArgumentsDone,
            InputDelta,
            InputDone,
        ),
        generates=True,
        errors=(404,),
    ),
    Operation(
        "get",
        "/v1/responses/{id}",
        show_response,
        "showResponse",
        reply=ResponseObject,
        parameters=(RESPONSE,),
        errors=(404,),
    ),
    Operation(
        "delete",
        "/v1/responses/{id}",
        delete_response,
        "deleteResponse",
        reply=DeletedResponse,
        parameters=(RESPONSE,),
        errors=(404,),
    ),
    Operation(
        "post",
        "/v1/messages",
        messages,
        "createMessage",
        MessagesBody,
        MessageObject,
        events=(MessageStart, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop, MessageError),
        generates=True,
        dialect=ANTHROPIC,
    ),
    Operation(
        "post",
        "/v1/messages/count_tokens",
        count_tokens,
        "countMessageTokens",
        CountBody,
        TokenCount,
        counts=True,
        errors=(404,),
        dialect=ANTHROPIC,
    ),
    Operation(
        "post",
        "/v1/embeddings",
        embeddings,
        "createEmbedding",
        EmbeddingBody,
        EmbeddingList,
        rationed=True,
        errors=(404,),
    ),
    Operation("post", "/v1/estimate", estimate, "estimate", AnyBody, Expectation, counts=True),
    Operation(
        "post", "/v1/files", upload_file, "createFile", reply=FileObject, other_body="multipart/form-data", errors=FORM
    ),
    Operation("get", "/v1/files", list_files, "listFiles", reply=FileList, parameters=PAGE, errors=(404,)),
    Operation("get", "/v1/files/{id}", show_file, "showFile", reply=FileObject, parameters=(FILE,), errors=(404,)),
    Operation(
        "delete", "/v1/files/{id}", delete_file, "deleteFile", reply=DeletedFile, parameters=(FILE,), errors=(404,)
    ),
    Operation(
        "get",
        "/v1/files/{id}/content",
        send_content,
        "downloadFile",
        other=("application/jsonl",),
        parameters=(FILE,),
        errors=(404,),
    ),
    Operation("post", "/v1/batches", create_batch, "createBatch", BatchBody, BatchObject, errors=(404, 507)),
    Operation("get", "/v1/batches", list_batches, "listBatches", reply=BatchList, parameters=PAGE, errors=(404,)),
    Operation(
        "get", "/v1/batches/{id}", show_batch, "showBatch", reply=BatchObject, parameters=(BATCH,), errors=(404,)
    ),
    Operation(
        "post",
        "/v1/batches/{id}/cancel",
        cancel_batch,
        "cancelBatch",
        reply=BatchObject,
        parameters=(BATCH,),
        errors=(404, 507),
    ),
    Operation("get", "/v1/models", list_models, "listModels", reply=ModelList),
    Operation(
        "get", "/v1/models/{model:.+}", show_model, "showModel", reply=ModelCard, parameters=(MODEL,), errors=(404,)
    ),
    Operation("get", "/v1/requests", list_requests, "listRequests", reply=RequestList, parameters=(LIMIT, ROW)),
    Operation(
        "get",
        "/v1/requests/{id}",
        show_request,
        "showRequest",
        reply=RequestStatus,
        parameters=(CALL, EXPLAIN),
        errors=(404,),
    ),
    Operation(
        "post",
        "/v1/requests/{id}/cancel",
        cancel_request,
        "cancelRequest",
        reply=RequestStatus,
        parameters=(CALL,),
        errors=(404,),
    ),
    Operation("post", "/tokenize", tokenize, "tokenize", TokenizeBody, Tokens, counts=True, errors=(404,)),
    Operation("post", "/detokenize", detokenize, "detokenize", DetokenizeBody, Detokenized, counts=True, errors=(404,)),
    Operation("get", "/metrics", metrics, "metrics", other=("text/plain",), errors=(404,)),
    Operation("get", "/load", load, "load", reply=Load),
    Operation("get", "/health", health, "health", reply=Readiness),
    Operation("get", "/health/ready", ready, "ready", reply=Health, open=True),
    Operation("get", "/health/live", live, "live", reply=Health, open=True),
    Operation("get", "/openapi.json", openapi, "openapi", other=("application/json",)),
    Operation("get", "/", index, "index", other=("application/json", "text/html")),
    Operation("get", "/chat", send_chat),
    Operation("get", "/dashboard/events", send_feed),
    Operation("get", "/dashboard/{name}", send_file),
)
