"""Weights of replies: JSON of large ones is made off the event loop, so that no other client waits for it."""

from __future__ import annotations

import msgspec
from aiohttp import web

from engine.messages import RowUpdate
from server.api.output.reply import encode, json_response
from server.api.served_model import MODEL

LARGE = 1000
"""Weight from which a reply is made off the event loop: there it would take about two milliseconds."""

LETTERS = 64
"""Characters of text that take about as long as one log-probability."""


def weigh(update: RowUpdate) -> int:
    """How long an update takes to encode, in log-probabilities."""
    told = (tokens for tokens in (update.logprobs, update.prompt_logprobs) if tokens)
    entries = sum(len(tokens) * (1 + (0 if tokens[-1] is None else len(tokens[-1].top))) for tokens in told)
    return len(update.token_ids) + entries + len(update.text) // LETTERS


async def send_reply(request: web.Request, reply: msgspec.Struct, weight: int) -> web.StreamResponse:
    """Answer with a reply of that weight, whose JSON is made in a thread where it is large."""
    if weight < LARGE:
        return json_response(reply)
    return web.Response(body=await request.app[MODEL].run_in_thread(encode, reply), content_type="application/json")
