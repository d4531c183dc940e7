"""The whole answer of OpenAI's chat and text completions, from the events of a stream of it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import orjson

from server.gateway.meta import CallMeta

PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})

HARMLESS = frozenset(
    {
        *("model", "messages", "prompt", "suffix", "max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos"),
        *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "n", "logit_bias", "stream"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "logprobs", "top_logprobs", "user"),
        *("tools", "tool_choice", "parallel_tool_calls", "response_format", "structured_outputs", "reasoning_effort"),
        *(
            "chat_template_kwargs",
            "priority",
            "deadline_ms",
            "prompt_cache_key",
            "cache_salt",
            "metadata",
            "skip_special_tokens",
        ),
    }
)
"""Fields of a call whose answer has the same in a stream as when it comes whole; any other may ask for more."""

GROWING = frozenset({"content", "reasoning_content", "reasoning", "refusal", "text", "arguments"})
"""Texts that come in pieces; of others that come again the last counts."""

MOST = 2**25  # bytes of a stream that one answer is made of
LINE = 2**20  # bytes of one of its lines

FOREIGN = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What is raised for events that are none of OpenAI's."""


def as_stream(path: str, meta: CallMeta, body: bytes) -> bytes | None:
    """The body that asks for a whole answer as a stream; None where one is asked for, or something could be lost."""
    if path not in PATHS or meta.stream not in (None, False):
        return None
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    if not fields.keys() <= HARMLESS:
        return None
    options = {"stream": True, "stream_options": {"include_usage": True}}
    return msgspec.json.encode(fields | {name: msgspec.Raw(orjson.dumps(one)) for name, one in options.items()})


class Text(list[str]):
    """A text in pieces, which are joined once: each grown text would be copied with each event."""


class Merged:
    """A whole answer that grows with each piece of its stream."""

    def __init__(self) -> None:
        self._size = 0
        self._rest = bytearray()
        self._answer: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._foreign = False
        self.doubtful = False  # whether calls of tools cannot be told apart for certain

    def add(self, piece: bytes) -> None:
        """Take in more bytes; beyond MOST, or in a line beyond LINE, they are dropped, and there is no whole answer."""
        self._size += len(piece)
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        self._foreign |= self._size > MOST or len(self._rest) > LINE
        if self._foreign:
            self._rest.clear()
            return
        try:
            for line in lines:
                if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                    event = orjson.loads(data)
                    for choice in event.pop("choices", ()):
                        _grow(self._choices.setdefault(choice["index"], {}), choice)
                    self._answer |= {name: one for name, one in event.items() if one is not None}
        except FOREIGN:
            self._foreign = True

    @property
    def failed(self) -> bool:
        """Whether an event told of an error."""
        return "error" in self._answer

    def whole(self) -> bytes | None:
        """The answer as JSON; None where its end or its usage did not come, or its events are none of OpenAI's."""
        choices = [self._choices[index] for index in sorted(self._choices)]
        ended = bool(choices) and all(one.get("finish_reason") is not None for one in choices)
        if self._foreign or not ended or "usage" not in self._answer:
            return None
        with suppress(*FOREIGN):
            for choice in choices:
                if "delta" in choice:
                    choice["message"] = message = _message(choice.pop("delta"))
                    cut = choice["finish_reason"] != "tool_calls"
                    self.doubtful |= not all(_is_call(one, cut=cut) for one in message.get("tool_calls") or ())
            if self.doubtful:
                return None
            kind = str(self._answer.get("object", "")).removesuffix(".chunk")
            answer = self._answer | {"object": kind, "choices": choices}
            return orjson.dumps(answer, "".join, orjson.OPT_PASSTHROUGH_SUBCLASS)
        return None


def _message(delta: dict[str, Any]) -> dict[str, Any]:
    calls = [{name: one for name, one in call.items() if name != "index"} for call in delta.get("tool_calls") or ()]
    message = {"role": "assistant", "content": None} | delta
    if calls:
        message |= {"content": message["content"] or None, "tool_calls": calls}
    return message


def _is_call(call: dict[str, Any], *, cut: bool) -> bool:
    """Whether a call of a tool has an id, and arguments in JSON unless they may have been cut off."""
    with suppress(*FOREIGN):
        if not cut and "function" in call:
            orjson.loads("".join(call["function"]["arguments"]))
        return bool(call["id"])
    return False


def _grow(own: dict[str, Any], more: dict[str, Any]) -> None:
    """Add what an event has more of a choice, or of a part of one."""
    for name, value in more.items():
        old = own.get(name)
        if old is None or old == "":
            own[name] = [] if _in_parts(name, value) else value
            if _in_parts(name, value):
                _add_parts(own[name], value)
        elif isinstance(value, dict):
            _grow(old, value)
        elif _in_parts(name, value):
            _add_parts(old, value)
        elif isinstance(value, list):
            old += value
        elif value is not None and value != "":
            if name not in GROWING:
                own[name] = value
            elif isinstance(old, Text):
                old.append(value)
            else:
                own[name] = Text((old, value))


def _in_parts(name: str, value: Any) -> bool:
    """Whether a list's members come in pieces, as calls of tools do."""
    return (
        isinstance(value, list)
        and bool(value)
        and isinstance(value[0], dict)
        and (name == "tool_calls" or "index" in value[0])
    )


def _add_parts(own: list[dict[str, Any]], more: list[dict[str, Any]]) -> None:
    """Add pieces to the members that they go on with; another id is another member, whatever its index."""
    for part in more:
        index, name = part.get("index"), part.get("id")
        fits = (
            one
            for one in reversed(own)
            if index in (None, one.get("index")) and (not name or one.get("id") in (None, "", name))
        )
        if (known := next(fits, None)) is None:
            own.append(dict(part))
        else:
            _grow(known, part)
