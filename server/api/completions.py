"""POST /v1/completions: prompts in, their continuations out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec
from aiohttp import web

from engine.messages import FinishReason, TokenLogprob
from server.api.input.body import read_call
from server.api.input.prompts import completion_prompts
from server.api.input.schema import CompletionBody
from server.api.output.answer import respond
from server.api.output.call import Part
from server.api.output.choices import ChoicesBody, ChoiceWords
from server.api.output.reply import (
    CompletionLogprobs,
    Lazy,
    PromptLogprobs,
    characters,
    completion_logprobs,
    prompt_logprobs,
)
from server.api.served_model import MODEL


async def completions(request: web.Request) -> web.StreamResponse:
    """Continue prompts."""
    body, record = await read_call(request, CompletionBody, "cmpl-")
    model = request.app[MODEL]
    prompts = await completion_prompts(body, model)
    return await respond(request, record, body, prompts, lambda call: CompletionWords(call, body, model))


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One completion, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    prompt_logprobs: PromptLogprobs | None = None


class CompletionReply(ChoicesBody[CompletionChoice], frozen=True, kw_only=True, omit_defaults=True):
    """A whole completion, or one event of a streamed one: they have one shape."""


class CompletionWords(ChoiceWords[CompletionBody]):
    """Words answers as OpenAI's completions; with `echo`, the prompt comes before the first token."""

    shape, object = CompletionReply, "text_completion"

    def choices(self, part: Part) -> Iterator[CompletionChoice]:
        choice = self._choice(part)
        if choice.text or choice.logprobs or choice.finish_reason:
            yield choice

    def whole(self, answers: Sequence[Part]) -> CompletionReply:
        return self.reply(CompletionReply, Lazy(self._choice, answers), object=self.object, **self.totals())

    def _choice(self, part: Part) -> CompletionChoice:
        answer, update = part.answer, part.update
        ids, said = update.token_ids, update.text
        tokens: Sequence[TokenLogprob | None] = update.logprobs
        if self.body.echo and not answer.begun:
            ids, said = answer.prompt.ids + ids, answer.prompt.text + said
            tokens = (*(update.prompt_logprobs or ()), *tokens)
        answer.begun = True
        logprobs, alternatives = None, self.body.logprobs
        if alternatives is not None and ids:
            lengths = (characters(token_id, self.text) for token_id in ids)
            *offsets, answer.characters = accumulate(lengths, initial=answer.characters)
            logprobs = completion_logprobs(ids, tokens, self.text, alternatives=alternatives, offsets=offsets)
        return CompletionChoice(
            index=answer.index,
            text=said,
            logprobs=logprobs,
            finish_reason=update.finish_reason,
            stop_reason=update.stop_reason,
            prompt_logprobs=prompt_logprobs(update.prompt_logprobs, self.text, self.body.prompt_logprobs),
        )
