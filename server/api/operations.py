"""What the API can be asked: every path and method, what goes in and what comes out, and which errors there are.

It is for the OpenAPI document; which handler does the work is the routes' business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from server.api.calls.request_status import RequestList, RequestStatus
from server.api.health import Health, Readiness
from server.api.input.schema import ChatBody, CompletionBody
from server.api.models import ModelCard, ModelList
from server.api.output.progress import HEADER as PROGRESS_HEADER
from server.api.output.reply import ChatChunk, ChatReply, CompletionReply
from server.api.responses.body import ResponsesBody
from server.api.responses.reply import ItemEvent, PartEvent, ResponseEvent, ResponseObject, TextDelta, TextDone
from server.api.tokenize import DetokenizeBody, Detokenized, TokenizeBody, Tokens

Body: TypeAlias = type[msgspec.Struct]

READ = (400, 401, 403, 408, 413, 417, 421, 429, 500, 503)
"""Errors of whatever has a body."""

ASKED = (400, 401, 403, 421, 500, 503)
"""Errors of whatever has none."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """Something in the path, the query or the headers, with its JSON schema."""

    name: str
    where: str
    schema: dict[str, object]
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    name: str
    what: str
    body: Body | None = None
    reply: Body | None = None
    events: tuple[Body, ...] = ()
    """Of a streamed reply."""
    other: tuple[str, ...] = ()
    """Media types of replies that are no JSON of ours."""
    parameters: tuple[Parameter, ...] = ()
    errors: tuple[int, ...] = ()
    """Besides those that all of its kind have."""
    open: bool = False
    """Whether it needs no key."""


GENERATING = (404, 499, 504)
MODEL = Parameter("model", "path", {"type": "string", "minLength": 1}, "one of the names in /v1/models")
CALL = Parameter("id", "path", {"type": "string", "minLength": 1}, "an answer's id, or the X-Request-Id of its request")
LIMIT = Parameter(
    "limit", "query", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}, "how many at most"
)
PROGRESS = Parameter(
    PROGRESS_HEADER,
    "header",
    {"enum": ["0", "1"], "default": "0"},
    "1: while a stream waits, comments tell its place in line, as with stream_options.include_progress",
)

OPERATIONS = (
    Operation(
        method="post",
        path="/v1/chat/completions",
        name="createChatCompletion",
        what="The assistant's next turn in a conversation",
        body=ChatBody,
        reply=ChatReply,
        events=(ChatChunk,),
        parameters=(PROGRESS,),
        errors=GENERATING,
    ),
    Operation(
        method="post",
        path="/v1/completions",
        name="createCompletion",
        what="Continuations of prompts",
        body=CompletionBody,
        reply=CompletionReply,
        events=(CompletionReply,),
        parameters=(PROGRESS,),
        errors=GENERATING,
    ),
    Operation(
        method="post",
        path="/v1/responses",
        name="createResponse",
        what="Text in, text out, as OpenAI's responses; nothing is stored",
        body=ResponsesBody,
        reply=ResponseObject,
        events=(ResponseEvent, ItemEvent, PartEvent, TextDelta, TextDone),
        parameters=(PROGRESS,),
        errors=GENERATING,
    ),
    Operation(
        method="get",
        path="/v1/models",
        name="listModels",
        what="The model that is served, under each of its names",
        reply=ModelList,
    ),
    Operation(
        method="get",
        path="/v1/models/{model}",
        name="showModel",
        what="One name of the model",
        reply=ModelCard,
        parameters=(MODEL,),
        errors=(404,),
    ),
    Operation(
        method="get",
        path="/v1/requests",
        name="listRequests",
        what="The caller's requests, the latest first: those under way, then those that have ended lately",
        reply=RequestList,
        parameters=(LIMIT,),
    ),
    Operation(
        method="get",
        path="/v1/requests/{id}",
        name="showRequest",
        what="How a request stands: its place in line, expected wait, tokens and times",
        reply=RequestStatus,
        parameters=(CALL,),
        errors=(404,),
    ),
    Operation(
        method="post",
        path="/v1/requests/{id}/cancel",
        name="cancelRequest",
        what="Break a request off; one that has ended stays as it is",
        reply=RequestStatus,
        parameters=(CALL,),
        errors=(404,),
    ),
    Operation(
        method="post",
        path="/tokenize",
        name="tokenize",
        what="A prompt or messages as tokens",
        body=TokenizeBody,
        reply=Tokens,
        errors=(404,),
    ),
    Operation(
        method="post",
        path="/detokenize",
        name="detokenize",
        what="Tokens as text",
        body=DetokenizeBody,
        reply=Detokenized,
        errors=(404,),
    ),
    Operation(
        method="get",
        path="/metrics",
        name="metrics",
        what="Counters, gauges and histograms for Prometheus",
        other=("text/plain",),
        errors=(404,),
    ),
    Operation(
        method="get",
        path="/health",
        name="health",
        what="The same as /health/ready",
        reply=Readiness,
    ),
    Operation(
        method="get",
        path="/health/ready",
        name="ready",
        what="Whether a request would be taken",
        reply=Readiness,
    ),
    Operation(
        method="get",
        path="/health/live",
        name="live",
        what="Whether the process answers; the only one that needs no key",
        reply=Health,
        open=True,
    ),
    Operation(
        method="get",
        path="/openapi.json",
        name="openapi",
        what="This document",
        other=("application/json",),
    ),
    Operation(
        method="get",
        path="/",
        name="index",
        what="The dashboard for browsers, the endpoints for all others",
        other=("application/json", "text/html"),
    ),
)
