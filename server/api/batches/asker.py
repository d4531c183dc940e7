"""Batch lines as requests of the lowest priority, and their answers as HTTP."""

import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress

import msgspec
from aiohttp import web

from scheduler.request import BACKGROUND
from server.access import ACCESS, ALL, Share
from server.api.embeddings import EmbeddingBody, embed
from server.api.errors import ApiError, error_body, internal_error, invalid
from server.api.generate import CHAT, COMPLETION, Endpoint
from server.api.input.body import decode
from server.api.input.prompts import read_prompts
from server.api.output.answer import gather_answers
from server.api.output.call import open_call
from server.api.output.reply import encode
from server.api.register import REGISTER, Record
from server.api.served_model import DISPATCHER, MODEL, model_name
from server.batches.batch import BatchRecord, LineReply

log = logging.getLogger(__name__)

LINE_LOGPROBS = 2**16  # of a line: its answer is held whole in memory

LATER = (429, 503)  # retried statuses


# paths that reach the dispatcher
ENDPOINTS: Mapping[str, Endpoint] = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETION}

EMBEDDINGS = "/v1/embeddings"

LATE = "a batch is answered when nothing else waits"
REFUSED = {"stream": "answers of a batch come whole", "deadline_ms": LATE, "promise": LATE}

PATHS = (*ENDPOINTS, EMBEDDINGS)  # of batch lines


class ModelAsker:
    """Event loop only."""

    def __init__(self, app: web.Application) -> None:
        self._app = app

    def enter(self, holder: str | None) -> Share | None:
        """A share of the key's quota; None while too little is left."""
        quota = self._app[ACCESS].quota
        with suppress(ApiError):
            return quota.enter(holder or ALL, self._app[DISPATCHER].now(), quota.background)
        return None

    def leave(self, share: Share) -> None:
        self._app[ACCESS].quota.leave(share)

    async def ask(self, record: BatchRecord, body: bytes, share: Share, request_id: str) -> LineReply | None:
        """An answer or error; None where there is no room now."""
        try:
            reply = await self._answer(record, body, share, request_id)
        except ApiError as failure:
            return None if failure.status in LATER else _failed(failure, request_id)
        except Exception:
            log.exception("request %s failed", request_id)
            return _failed(internal_error(request_id), request_id)
        # May be large.
        return LineReply(200, request_id, msgspec.Raw(await self._app[MODEL].run_in_thread(encode, reply)))

    async def _answer(self, batch: BatchRecord, raw: bytes, share: Share, request_id: str) -> msgspec.Struct:
        app, model, endpoint, holder = self._app, self._app[MODEL], batch.endpoint, batch.holder
        if endpoint == EMBEDDINGS:
            return (await embed(await decode(raw, EmbeddingBody, app), app, holder))[0]
        kind = ENDPOINTS[endpoint]
        given = await decode(raw, kind.schema, app)
        for field, reason in REFUSED.items():
            if getattr(given, field) not in (None, False):
                raise invalid(field, f"{reason}; leave it out")
        name, arrival = model_name(given.model, model), app[DISPATCHER].now()
        body = msgspec.structs.replace(given, priority=BACKGROUND)
        prompts = await read_prompts(body, model)
        app[ACCESS].quota.count_answers(share, (body.n or 1) * len(prompts))
        call_id = f"{kind.prefix}{secrets.token_hex(16)}"
        record = Record(call_id, holder, request_id, endpoint, name, False, arrival, client=holder or "")
        with app[REGISTER].enter(record):
            async with open_call(body, prompts, app, record, LINE_LOGPROBS) as call:
                return kind.words(call, body, model).whole(await gather_answers(call))


def _failed(error: ApiError, request_id: str) -> LineReply:
    return LineReply(error.status, request_id, msgspec.Raw(encode(error_body(error))))
