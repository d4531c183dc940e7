"""Path and body of the request for a prompt, made before a run, so that the run only sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import orjson

from models.errors import UserError


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and the number of tokens asked for; exactly one of `messages`, `text` and `tokens` is given."""

    messages: tuple[Mapping[str, str], ...] = ()
    """Chat messages; empty when `tokens` or `text` is used."""
    text: str | None = None
    """A raw completion prompt."""
    tokens: tuple[int, ...] = ()
    """A raw completion prompt as token ids."""
    follow_ups: tuple[str, ...] = ()
    """The user's further turns, each sent once the one before has been answered; for chat messages only."""
    max_tokens: int | None = None
    replay_tokens: int | None = None
    """Length that the server shall generate; needs a server that was started with --allow-replay."""
    arrival: float | None = None
    """Seconds after the start, for traces; None leaves it to the arrival process."""
    label: str = ""
    """The task or trace that it comes from."""
    input_length: int | None = None
    """Tokens of the prompt, where the workload knows."""


CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """One request, ready to be sent."""

    index: int
    path: str
    body: bytes
    label: str = ""
    cancel_after: float | None = None
    """Seconds after sending when the client leaves; None lets it stay."""
    turn: int = 1
    """Place of the request in its conversation, from 1."""
    follow_up: Callable[[str], PreparedRequest] | None = None
    """Makes the conversation's next request of this one's answer; None when it is the last."""


@dataclass(frozen=True, slots=True)
class RequestForm:
    """The model, endpoint and fields that all requests of a run have in common."""

    model: str
    endpoint: str | None = None
    """Path of the API; None takes the one that goes with each prompt."""
    fields: Mapping[str, object] = field(default_factory=dict)
    """Further fields of the body; they win over a prompt's own."""

    def fill(self, prompt: Prompt, index: int, cancel_after: float | None = None, turn: int = 1) -> PreparedRequest:
        """The request for a prompt; those that follow it have the next indices. Raises UserError."""
        path = self.endpoint or (CHAT if prompt.messages else COMPLETIONS)
        asked = _messages(prompt) if "chat" in path else {"prompt": _raw_prompt(prompt)}
        lengths = {"max_tokens": prompt.max_tokens, "replay_tokens": prompt.replay_tokens}
        body = {
            "model": self.model,
            **asked,
            **{name: value for name, value in lengths.items() if value is not None},
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.fields,
        }
        follow_up = partial(self._follow_up, prompt, index, turn) if prompt.follow_ups else None
        return PreparedRequest(index, path, orjson.dumps(body), prompt.label, cancel_after, turn, follow_up)

    def _follow_up(self, prompt: Prompt, index: int, turn: int, answer: str) -> PreparedRequest:
        said, *later = prompt.follow_ups
        messages = (
            *prompt.messages,
            {"role": "assistant", "content": answer},
            {"role": "user", "content": said},
        )
        return self.fill(replace(prompt, messages=messages, follow_ups=tuple(later)), index + 1, turn=turn + 1)


def _messages(prompt: Prompt) -> dict[str, object]:
    if prompt.messages:
        return {"messages": [dict(message) for message in prompt.messages]}
    if prompt.text is None:
        raise UserError(f"this workload's prompts are token ids, which need --endpoint {COMPLETIONS}")
    return {"messages": [{"role": "user", "content": prompt.text}]}


def _raw_prompt(prompt: Prompt) -> object:
    if prompt.messages:
        raise UserError(f"this workload's prompts are chat messages, which need --endpoint {CHAT}")
    return prompt.text if prompt.text is not None else list(prompt.tokens)
