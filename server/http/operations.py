"""All operations of the API, from which routes, document, admission and access follow."""

from typing import Any

from aiohttp.typedefs import Handler

from server.api import counting, embeddings, generate, health, register, responses
from server.api.batches import batches, files
from server.api.input.messages import CountBody, MessagesBody
from server.api.input.responses import ResponsesBody
from server.api.input.schema import ChatBody, CompletionBody
from server.api.openapi import PROMISE, openapi
from server.api.operation import Body, Dialect, Operation, Parameter
from server.api.output import chat, completions, messages, response_objects as replies
from server.api.output.reply import Expectation
from server.api.request_status import RequestList, RequestStatus
from server.batches.files import FileObject
from server.dashboard.feed import index, send_chat, send_feed, send_file
from server.observe.metrics import metrics

ANTHROPIC = Dialect(messages.MessageError, messages.message_error, "request-id")
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
OF_ROW = "only the call under way that has this row of the dashboard, and what it waits for"
ROW = _number("row", 0, register.MOST_ROW, OF_ROW)
PAGE = (
    _number("limit", 1, batches.MOST, "how many at most", default=20),
    Parameter("after", "query", {"type": "string"}, "the id of the one before"),
)


def _generate(path: str, handler: Handler, name: str, body: Body, reply: Body, *events: Body, **more: Any) -> Operation:
    return Operation("post", path, handler, name, body, reply, events, generates=True, **more)


def _count(path: str, handler: Handler, name: str, body: Body, reply: Body, **more: Any) -> Operation:
    return Operation("post", path, handler, name, body, reply, counts=True, **more)


def _at(method: str, path: str, handler: Handler, name: str, reply: Body, *given: Parameter) -> Operation:
    return Operation(method, path, handler, name, reply=reply, parameters=given)


_CHAT = (ChatBody, chat.ChatReply, chat.ChatChunk)
_COMPLETION = (CompletionBody, completions.CompletionReply, completions.CompletionReply)
_RESPONSE = (ResponsesBody, replies.ResponseObject, replies.ResponseEvent)
_MESSAGE = (MessagesBody, messages.MessageObject, messages.MessageEvent, messages.MessageError)
_COUNT = (CountBody, messages.TokenCount)
_EMBEDDING = (embeddings.EmbeddingBody, embeddings.EmbeddingList)
JSONL = ("application/jsonl",)

OPERATIONS = (
    _generate("/v1/chat/completions", generate.chat_completions, "createChatCompletion", *_CHAT),
    _generate("/v1/completions", generate.completions, "createCompletion", *_COMPLETION),
    _generate("/v1/responses", responses.responses, "createResponse", *_RESPONSE),
    _at("get", "/v1/responses/{id}", responses.show_response, "showResponse", replies.ResponseObject, RESPONSE),
    _at("delete", "/v1/responses/{id}", responses.delete_response, "deleteResponse", replies.DeletedResponse, RESPONSE),
    _generate("/v1/messages", generate.messages, "createMessage", *_MESSAGE, dialect=ANTHROPIC),
    _count("/v1/messages/count_tokens", counting.count_tokens, "countMessageTokens", *_COUNT, dialect=ANTHROPIC),
    Operation("post", "/v1/embeddings", embeddings.embeddings, "createEmbedding", *_EMBEDDING, rationed=True),
    _count("/v1/estimate", counting.estimate, "estimate", counting.AnyBody, Expectation, parameters=(PROMISE,)),
    Operation("post", "/v1/files", files.upload_file, "createFile", reply=FileObject, other_body="multipart/form-data"),
    _at("get", "/v1/files", files.list_files, "listFiles", files.FileList, *PAGE),
    _at("get", "/v1/files/{id}", files.show_file, "showFile", FileObject, FILE),
    _at("delete", "/v1/files/{id}", files.delete_file, "deleteFile", files.DeletedFile, FILE),
    Operation("get", "/v1/files/{id}/content", files.send_content, "downloadFile", other=JSONL, parameters=(FILE,)),
    Operation("post", "/v1/batches", batches.create_batch, "createBatch", batches.BatchBody, batches.BatchObject),
    _at("get", "/v1/batches", batches.list_batches, "listBatches", batches.BatchList, *PAGE),
    _at("get", "/v1/batches/{id}", batches.show_batch, "showBatch", batches.BatchObject, BATCH),
    _at("post", "/v1/batches/{id}/cancel", batches.cancel_batch, "cancelBatch", batches.BatchObject, BATCH),
    Operation("get", "/v1/models", health.list_models, "listModels", reply=health.ModelList),
    _at("get", "/v1/models/{model:.+}", health.show_model, "showModel", health.ModelCard, MODEL),
    _at("get", "/v1/requests", register.list_requests, "listRequests", RequestList, LIMIT, ROW),
    _at("get", "/v1/requests/{id}", register.show_request, "showRequest", RequestStatus, CALL, EXPLAIN),
    _at("post", "/v1/requests/{id}/cancel", register.cancel_request, "cancelRequest", RequestStatus, CALL),
    _count("/tokenize", counting.tokenize, "tokenize", counting.TokenizeBody, counting.Tokens),
    _count("/detokenize", counting.detokenize, "detokenize", counting.DetokenizeBody, counting.Detokenized),
    Operation("get", "/metrics", metrics, "metrics", other=("text/plain",)),
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
