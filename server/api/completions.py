"""POST /v1/completions: prompts in, their continuations out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from engine.messages import RowUpdate, TokenLogprob
from server.api.input.body import read_call
from server.api.input.prompts import completion_prompts
from server.api.input.schema import CompletionBody
from server.api.output import reply as bodies
from server.api.output.answer import Result, respond
from server.api.output.call import Answer, Part
from server.api.output.logprobs import characters, completion_logprobs, prompt_logprobs
from server.api.served_model import MODEL

if TYPE_CHECKING:
    from models.text import Text


async def completions(request: web.Request) -> web.StreamResponse:
    """Continue prompts."""
    body, head = await read_call(request, CompletionBody, "cmpl-")
    prompts = await completion_prompts(body, request.app[MODEL])
    return await respond(request, body, prompts, CompletionForm(head, request.app[MODEL].text, body))


@dataclass(frozen=True, slots=True)
class CompletionForm:
    """Words answers as OpenAI's completions; with `echo`, the prompt comes before the first token."""

    head: bodies.Head
    text: Text
    body: CompletionBody

    def events(self, part: Part, usage: bodies.Usage | None) -> Iterator[bodies.CompletionReply]:
        choice = self._choice(part.answer, part.update)
        if choice.text or choice.logprobs or choice.finish_reason:
            yield self._reply([choice], usage)

    def closing(self, usage: bodies.Usage, metrics: bodies.Metrics) -> bodies.CompletionReply:
        return self._reply([], usage, metrics)

    def whole(self, results: Sequence[Result], usage: bodies.Usage, metrics: bodies.Metrics) -> bodies.CompletionReply:
        choices = bodies.Lazy[Result, bodies.CompletionChoice](
            lambda result: self._choice(result.answer, result.join().update), results
        )
        return self._reply(choices, usage, metrics)

    def _reply(
        self,
        choices: Sequence[bodies.CompletionChoice],
        usage: bodies.Usage | None,
        metrics: bodies.Metrics | None = None,
    ) -> bodies.CompletionReply:
        return bodies.CompletionReply(
            id=self.head.id,
            object="text_completion",
            created=self.head.created,
            model=self.head.model,
            choices=choices,
            system_fingerprint=self.head.fingerprint,
            usage=usage,
            metrics=metrics,
        )

    def _choice(self, answer: Answer, update: RowUpdate) -> bodies.CompletionChoice:
        echoed = bool(self.body.echo) and not answer.begun
        answer.begun = True
        return bodies.CompletionChoice(
            index=answer.index,
            text=answer.prompt.text + update.text if echoed else update.text,
            logprobs=self._logprobs(answer, update, echoed),
            finish_reason=update.finish_reason,
            stop_reason=update.stop_reason,
            prompt_logprobs=prompt_logprobs(update.prompt_logprobs, self.text, self.body.prompt_logprobs),
        )

    def _logprobs(self, answer: Answer, update: RowUpdate, echoed: bool) -> bodies.CompletionLogprobs | None:
        ids, tokens = _shown_tokens(answer, update, echoed)
        if self.body.logprobs is None or not ids:
            return None
        offset = answer.characters
        answer.characters += sum(characters(token_id, self.text) for token_id in ids)
        return completion_logprobs(ids, tokens, self.text, alternatives=self.body.logprobs, offset=offset)


def _shown_tokens(
    answer: Answer, update: RowUpdate, echoed: bool
) -> tuple[tuple[int, ...], tuple[TokenLogprob | None, ...]]:
    """Tokens that an update shows, with their log-probabilities."""
    if not echoed:
        return update.token_ids, update.logprobs
    return answer.prompt.ids + update.token_ids, (update.prompt_logprobs or ()) + update.logprobs
