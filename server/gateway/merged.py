"""A whole chat or text completion from its stream."""

from contextlib import suppress
from typing import Any

import msgspec
import orjson

from server.gateway.meta import CallMeta

PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})

KNOWN_FIELDS = frozenset(
    {
        *("model", "messages", "prompt", "suffix", "max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos"),
        *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "n", "logit_bias", "stream"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "logprobs", "top_logprobs", "user"),
        *("tools", "tool_choice", "parallel_tool_calls", "response_format", "structured_outputs", "reasoning_effort"),
        *("chat_template_kwargs", "priority", "deadline_ms", "prompt_cache_key", "cache_salt", "metadata"),
        "skip_special_tokens",
    }
)  # fields with the same effect in streams; others may matter

# concatenated; for others the last value counts
GROWING = frozenset({"content", "reasoning_content", "reasoning", "refusal", "text", "arguments"})

MOST = 2**25  # bytes of a stream
LINE = 2**20  # bytes of a line

FOREIGN = (ValueError, LookupError, TypeError, AttributeError, RecursionError)  # raised by malformed events


def as_stream(path: str, meta: CallMeta, body: bytes) -> bytes | None:
    """None for a stream, or where something could be lost."""
    if path not in PATHS or not (meta.stream is None or meta.stream is False):
        return None
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    if not fields.keys() <= KNOWN_FIELDS:
        return None
    options = {"stream": True, "stream_options": {"include_usage": True}}
    return msgspec.json.encode(fields | {name: msgspec.Raw(orjson.dumps(one)) for name, one in options.items()})


class GrowingText(list[str]):
    """Pieces, joined once."""


class StreamAggregator:
    def __init__(self) -> None:
        self._size = 0
        self._rest = bytearray()
        self._answer: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._foreign = False
        self.doubtful = False  # tool calls are ambiguous

    def add(self, piece: bytes) -> None:
        """Beyond MOST, or in a line beyond LINE, nothing is kept."""
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
                    self._answer = event | {name: one for name, one in self._answer.items() if event.get(name) is None}
        except FOREIGN:
            self._foreign = True

    @property
    def failed(self) -> bool:
        return self._answer.get("error") is not None

    def whole(self) -> bytes | None:
        """None without an end or usage, or for malformed events."""
        choices = [self._choices[index] for index in sorted(self._choices)]
        ended = bool(choices) and all(one.get("finish_reason") is not None for one in choices)
        if self._foreign or not ended or self._answer.get("usage") is None:
            return None
        with suppress(*FOREIGN):
            for choice in choices:
                if "delta" in choice:
                    choice["message"] = message = _message(choice.pop("delta"))
                    cut = choice["finish_reason"] in ("length", "content_filter")
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
    """Has an id, and JSON arguments unless truncated."""
    with suppress(*FOREIGN):
        if not cut and "function" in call:
            orjson.loads("".join(call["function"]["arguments"]))
        return bool(call["id"])
    return False


def _grow(own: dict[str, Any], more: dict[str, Any]) -> None:
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
                if isinstance(old, str) and old != value and not name.endswith("reason"):
                    raise ValueError(f"{name} comes in pieces, or changes")
                own[name] = value
            elif isinstance(old, GrowingText):
                old.append(value)
            else:
                own[name] = GrowingText((old, value))


def _in_parts(name: str, value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and isinstance(value[0], dict)
        and (name == "tool_calls" or "index" in value[0])
    )


def _add_parts(own: list[dict[str, Any]], more: list[dict[str, Any]]) -> None:
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
