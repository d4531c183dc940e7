"""The few fields of a call that scheduling needs; the rest of its body stays bytes, whatever it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Any
from zlib import crc32

import msgspec
from msgspec import Raw

from server.api.errors import ApiError, bad_request

TABLE = 2**13
"""Numbers that words are hashed to."""

MOST_WORDS = 4096
"""Words of a prompt that its answer's length is predicted from."""

LONGEST = 2**16
"""Characters of a text that words are looked for in: longer ones are pictures or sound."""

BYTES_PER_TOKEN = 4
"""Bytes of a text that count as a token, as no tokenizer is known."""

MOST_PROMPT = 2**15
"""Tokens that a prompt counts as at most: what is larger has pictures or sound in it."""

TEXTS = ("system", "instructions", "messages", "prompt", "input")
"""Fields with what the model reads, in the order in which it does."""

INNER = ("content", "text")
"""Names of the fields of messages, and of their parts, that hold texts."""

_UNSPACED = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff"
"""Characters of Chinese, Japanese and Korean, each of which counts as a word."""

_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


class CallMeta(msgspec.Struct, frozen=True):
    """What is read of a body. Values that are not as the API has them are the backend's to refuse."""

    model: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    n: Any = None
    user: Any = None
    prompt_cache_key: Any = None
    priority: Any = None
    deadline_ms: Any = None
    stream: Any = None
    system: Raw = msgspec.field(default_factory=Raw)
    instructions: Raw = msgspec.field(default_factory=Raw)
    messages: Raw = msgspec.field(default_factory=Raw)
    prompt: Raw = msgspec.field(default_factory=Raw)
    input: Raw = msgspec.field(default_factory=Raw)

    @property
    def most(self) -> int | None:
        """Tokens that an answer may have; None where the call does not say."""
        given = (self.max_completion_tokens, self.max_tokens, self.max_output_tokens)
        return next((one for one in given if _is_count(one) and one > 0), None)

    @property
    def choices(self) -> int:
        """Answers to each prompt."""
        return self.n if _is_count(self.n) and 1 <= self.n <= 64 else 1

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts, by their bytes."""
        size = sum(len(memoryview(getattr(self, name))) for name in TEXTS)
        return min(max(1, size // BYTES_PER_TOKEN), MOST_PROMPT)

    def words(self) -> tuple[int, ...]:
        """Hashes, below TABLE, of the words that the model reads, in their order."""
        found: list[int] = []
        for name in TEXTS:
            raw: Raw = getattr(self, name)
            if memoryview(raw):
                for text in _texts(msgspec.json.decode(raw)):
                    found += [crc32(word.encode()) % TABLE for word in _WORD.findall(text[:LONGEST].lower())]
                    if len(found) >= MOST_WORDS:
                        return tuple(found[:MOST_WORDS])
        return tuple(found)


def read_meta(body: bytes) -> CallMeta:
    """The fields of a JSON body; raises ApiError 400 where it is none."""
    try:
        return msgspec.json.decode(body, type=CallMeta)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the request's body is not a JSON object: {error}", code="invalid_json") from None


def read_deadline(meta: CallMeta, arrival: float) -> float | None:
    """When the answer is wanted, in seconds of the clock by which it arrived; raises ApiError 400."""
    if meta.deadline_ms is None:
        return None
    if not _is_count(meta.deadline_ms) or meta.deadline_ms < 1:
        raise ApiError(400, "deadline_ms: must be a number of milliseconds from 1 on", param="deadline_ms")
    return arrival + float(meta.deadline_ms) / 1000


def read_priority(meta: CallMeta) -> int:
    """Lower is earlier, as in vLLM; 0 where the call has none. Raises ApiError 400."""
    if meta.priority is None:
        return 0
    if type(meta.priority) is not int or abs(meta.priority) >= 2**31:
        raise ApiError(400, "priority: must be a whole number of 32 bits", param="priority")
    return int(meta.priority)


def read_cache_key(meta: CallMeta, client: str) -> str:
    """A short name of the conversation that a client says the call belongs to; empty where it does not say."""
    key = meta.prompt_cache_key
    if not isinstance(key, str) or not key:
        return ""
    return sha256(f"{client}/{key}".encode("utf-8", "surrogatepass")).hexdigest()


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _texts(value: Any) -> Iterator[str]:
    """The texts of a prompt: one, a list of them, or messages with parts."""
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _texts(item)
        case dict():
            for name in INNER:
                if name in value:
                    yield from _texts(value[name])
