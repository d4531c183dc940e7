"""Shared parts of replies: JSON, token counts, times, estimates, log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec
import orjson
from aiohttp import web

from engine.messages import RowUpdate, TokenLogprob
from scheduler.length.likely import length_interval, median_length
from scheduler.request import Request
from scheduler.wait_estimate.calibration import find_last
from server.line_ends import escape_line_ends
from server.version import VERSION

if TYPE_CHECKING:
    from models.text import Text

FINGERPRINT = f"lengthwise-{VERSION}"


T = TypeVar("T")


class Lazy(Sequence[T]):
    """Items made and encoded one by one, for memory and other threads' turns."""

    def __init__(self, make: Callable[..., T], items: Sequence[object], *common: object) -> None:
        self._make, self._items, self._common = make, items, common

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, place: Any) -> Any:
        return self._make(self._items[place], *self._common)

    def __iter__(self) -> Iterator[T]:
        return (self._make(one, *self._common) for one in self._items)


def encode(body: object) -> bytes:
    data = orjson.dumps(msgspec.to_builtins(body, builtin_types=(orjson.Fragment,), enc_hook=_encode_items))
    return escape_line_ends(data)


def _encode_items(items: Lazy[Any]) -> orjson.Fragment:
    return orjson.Fragment(b"[%b]" % b",".join(map(encode, items)))


def json_response(body: msgspec.Struct) -> web.Response:
    return web.Response(body=encode(body), content_type="application/json")


LARGE = 1000  # weight, two milliseconds, from which on replies are made off the event loop

LETTERS = 64  # characters that take as long as one log-probability


def weigh(update: RowUpdate) -> int:
    """In log-probabilities."""
    told = (tokens for tokens in (update.logprobs, update.prompt_logprobs) if tokens)
    entries = sum(len(tokens) * (1 + (0 if tokens[-1] is None else len(tokens[-1].top))) for tokens in told)
    return len(update.token_ids) + entries + len(update.text) // LETTERS


SHORT_FORM: web.RequestKey[Mapping[str, str]] = web.RequestKey("short_form")  # for the response headers


BY = "x-lengthwise-by"  # response header


class Interval(msgspec.Struct, frozen=True):
    """A median, and the ends of an interval: one of twenty is below `low`, and of usual `coverage` above `high`; null
    where only the median is known."""

    median: float
    low: float | None
    high: float | None


class Expectation(msgspec.Struct, frozen=True):
    """The estimate of a call from when it came, or as if it came now; `place` is 1 for the next to start.

    Seconds are from that moment on, until the first of its answers starts, and until the last is complete; null where
    nothing has been measured yet. It is promised `by` then, which holds for `coverage` of calls. Tokens are those of
    all its answers; null where no length is predicted.
    """

    prompt_tokens: int
    cached_tokens: int
    predicted_tokens: Interval | None
    place: int | None
    expected_wait_s: float | None
    expected_completion_s: Interval | None
    by: str | None
    coverage: float | None
    run_by: str | None = None  # its program's last answer, by as many
    refused: str | msgspec.UnsetType | None = msgspec.UNSET  # code of the call's error


def expectation_of(requests: Sequence[Request], now: float, *, run: bool = False) -> Expectation:
    """From the requests' estimates on arrival, one at least; `now` of their clock. `run`: with its program's end."""
    program = requests[0].program if run else None
    within = None if program is None or program.came is None else program.end_within(requests[0].coverage)
    prompts = {id(request.prompt): request for request in reversed(requests)}.values()
    expected = [request.expected for request in requests if request.expected is not None]
    first = min(expected, key=lambda one: one.place, default=None)
    known = [one for one in expected if one.known]
    last = find_last(requests)
    ends = [max(values) for values in zip(*((one.median, one.low, one.high) for one in known), strict=True)]
    return Expectation(
        prompt_tokens=sum(request.input_length for request in prompts),
        cached_tokens=sum(request.cached_prompt for request in prompts),
        predicted_tokens=_tokens(requests),
        place=None if first is None else first.place + 1,
        expected_wait_s=None if first is None or first.wait is None else round(first.wait, 3),
        expected_completion_s=Interval(*(round(end, 3) for end in ends)) if last is not None else None,
        by=None if last is None else write_time(last.by - now),
        coverage=None if last is None else requests[0].coverage,
        run_by=None if within is None else write_time(requests[0].times.came + within - now),
    )


def write_time(seconds: float) -> str:
    """RFC 3339, `seconds` from now."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _tokens(requests: Sequence[Request]) -> Interval | None:
    told = [interval for request in requests if (interval := length_interval(request)) is not None]
    if len(told) == len(requests):
        low, median, high = (round(sum(values), 1) for values in zip(*told, strict=True))
        return Interval(median, low, high)
    known = predicted_tokens(requests)
    return None if known is None else Interval(known, None, None)


def predicted_tokens(requests: Sequence[Request]) -> float | None:
    """Of all answers; None where one has none."""
    known = [length for request in requests if (length := median_length(request)) is not None]
    return round(sum(known), 1) if len(known) == len(requests) else None


def headers_of(told: Expectation) -> Mapping[str, str]:
    tokens, end = told.predicted_tokens, told.expected_completion_s
    values = {
        "x-lengthwise-place": told.place,
        "x-lengthwise-predicted-tokens": None if tokens is None else round(tokens.median),
        "x-lengthwise-expected-wait-ms": None if told.expected_wait_s is None else round(told.expected_wait_s * 1000),
        "x-lengthwise-expected-completion-ms": None if end is None else round(end.median * 1000),
        BY: told.by,
        "x-lengthwise-coverage": told.coverage,
    }
    return {name: str(value) for name, value in values.items() if value is not None}


class PromptDetails(msgspec.Struct, frozen=True):
    """Tokens of the prompt that were kept from earlier ones, and so were not read again."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens read and made."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Metrics(msgspec.Struct, frozen=True):
    """Where the time of a call went, in milliseconds, null where it never came so far; and what was foreseen."""

    queue_time_ms: float | None
    time_to_first_token_ms: float | None
    generation_time_ms: float | None
    predicted_tokens: float | None = None  # of `completion_tokens`; null where not predicted
    estimate: Expectation | msgspec.UnsetType = msgspec.UNSET  # on arrival, if asked for


class Alternative(msgspec.Struct, frozen=True):
    """One token that could stand in a place of an answer."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(Alternative, frozen=True):
    """One token of a chat answer."""

    top_logprobs: list[Alternative]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """The tokens of a chat answer, or of a part of it."""

    content: Sequence[ChatLogprob]


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """The tokens of a completion, or of a part of it: four lists of one length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: Sequence[dict[str, float] | None] | None
    text_offset: list[int]


class PromptLogprob(msgspec.Struct, frozen=True):
    """One token that could stand in a place of the prompt; its id is the key that leads here."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs: TypeAlias = Sequence[dict[str, PromptLogprob] | None]


LEAST = -9999.0  # JSON has no minus infinity


def chat_logprobs(tokens: Sequence[TokenLogprob], text: Text) -> ChatLogprobs:
    return ChatLogprobs(Lazy(_chat_logprob, tokens, text))


def _chat_logprob(token: TokenLogprob, text: Text) -> ChatLogprob:
    own = _alternative(token.token_id, token.logprob, text)
    return ChatLogprob(own.token, own.logprob, own.bytes, [_alternative(*pair, text) for pair in token.top])


def _alternative(token_id: int, logprob: float, text: Text) -> Alternative:
    return Alternative(text.token_text(token_id), max(logprob, LEAST), list(text.token_bytes(token_id)))


def completion_logprobs(
    ids: Sequence[int], tokens: Sequence[TokenLogprob | None], text: Text, *, alternatives: int, offsets: list[int]
) -> CompletionLogprobs:
    """Of `ids`, `offsets` characters into the text; None for a prompt's first token."""
    texts = [text.token_text(token_id) for token_id in ids]
    logprobs = [None if token is None else max(token.logprob, LEAST) for token in tokens]
    tops = Lazy(_top, tokens, text, alternatives) if alternatives else None
    return CompletionLogprobs(texts, logprobs, tops, offsets)


def _top(token: TokenLogprob | None, text: Text, alternatives: int) -> dict[str, float] | None:
    if token is None:
        return None
    pairs = (*token.top[:alternatives], (token.token_id, token.logprob))
    return {text.token_text(token_id): max(logprob, LEAST) for token_id, logprob in pairs}


def characters(token_id: int, text: Text) -> int:
    """Characters that a token begins: none for continuation bytes and special tokens."""
    return sum(byte & 0xC0 != 0x80 for byte in text.token_bytes(token_id)) if text.decode([token_id]) else 0


def prompt_logprobs(
    tokens: Sequence[TokenLogprob | None] | None, text: Text, alternatives: int | None
) -> PromptLogprobs | None:
    """By place and token id; None when not asked for."""
    if tokens is None or alternatives is None:
        return None
    return Lazy(_ranked, tokens, text, alternatives)


def _ranked(token: TokenLogprob | None, text: Text, alternatives: int) -> dict[str, PromptLogprob] | None:
    if token is None:
        return None
    ranks = [(token_id, logprob, place + 1) for place, (token_id, logprob) in enumerate(token.top[:alternatives])]
    ranks.append((token.token_id, token.logprob, token.rank))
    return {str(one): PromptLogprob(max(logprob, LEAST), rank, text.token_text(one)) for one, logprob, rank in ranks}
