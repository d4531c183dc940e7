"""POST /v1/embeddings, as OpenAI's API."""

import base64
import logging
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from server.access import holder_of, spend_tokens
from server.api.errors import ApiError, invalid
from server.api.input.body import read_body
from server.api.input.prompts import separate
from server.api.input.schema import ModelName, Texts, one_kind
from server.api.output.reply import Lazy
from server.api.output.sse import send_reply
from server.api.served_model import unknown_model
from server.embeddings import EmbeddingRefused, FloatMatrix, Ids, TextEmbedder
from server.worker_process import ProcessFailed

log = logging.getLogger(__name__)

MOST_INPUTS = 2048  # OpenAI's

MOST_TOKENS = 300_000  # of all inputs, OpenAI's


class EmbeddingBody(msgspec.Struct, frozen=True):
    """POST /v1/embeddings: a text, token ids of the embedding model, or a list of either."""

    input: Annotated[Texts, one_kind(MOST_INPUTS)]
    model: ModelName | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=65536)] | None = None  # truncated to these, at length 1
    user: Annotated[str, Meta(max_length=65536)] | None = None


class Embedding(msgspec.Struct, frozen=True):
    """The embedding of one input: its numbers, or as base64 those of little-endian float32."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Tokens read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True):
    """The embeddings of all inputs, in their order."""

    data: Sequence[Embedding]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


EMBEDDER = web.AppKey("embedder", TextEmbedder)

NUMBERS = 32  # take about as long to encode as one log-probability


async def embeddings(request: web.Request) -> web.StreamResponse:
    """Embed texts."""
    reply, weight = await embed(await read_body(request, EmbeddingBody), request.app, holder_of(request))
    return await send_reply(request, reply, weight)


async def embed(body: EmbeddingBody, app: web.Application, holder: str | None) -> tuple[EmbeddingList, int]:
    """The reply and its encoding weight. Raises ApiError 400, 404, 429 or 503."""
    embedder = app.get(EMBEDDER)
    if embedder is None:
        message = "this server embeds nothing: it was started with --embedding-model none"
        raise ApiError(404, message, code="no_embeddings")
    if body.model not in (None, embedder.name):
        raise unknown_model(body.model or "", (embedder.name,))
    inputs = _inputs(body)
    try:
        rows, tokens = await embedder.embed(inputs, body.dimensions, MOST_TOKENS)
    except EmbeddingRefused as error:
        raise _bad_request(error, several=len(inputs) > 1) from None
    except ProcessFailed as error:
        log.warning("texts cannot be embedded: %s", error)
        raise ApiError(503, "texts cannot be embedded at present; try again later", code="embedder_failed") from None
    spend_tokens(app, holder, tokens)
    made = Lazy(_embedding, range(len(rows)), rows, body.encoding_format == "base64")
    return EmbeddingList(made, embedder.name, EmbeddingUsage(tokens, tokens)), rows.size // NUMBERS


def _inputs(body: EmbeddingBody) -> Sequence[str | Ids]:
    written = separate(body.input, "input", MOST_INPUTS)
    for place, item in enumerate(written):
        if not item:
            raise _bad_request(EmbeddingRefused("must not be empty", place), several=len(written) > 1)
    return [item if isinstance(item, str) else tuple(item) for item in written]


def _bad_request(refused: EmbeddingRefused, *, several: bool) -> ApiError:
    path = f"{refused.param}[{refused.place}]" if several and refused.place is not None else refused.param
    return invalid(path, refused.message, refused.code)


def _embedding(place: int, rows: FloatMatrix, as_text: bool) -> Embedding:
    row = rows[place].astype("<f4", copy=False)
    return Embedding(place, base64.b64encode(row.tobytes()).decode() if as_text else row.tolist())
