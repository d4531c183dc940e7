"""The few fields of a call that scheduling needs; the rest of its body stays bytes, whatever it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from itertools import chain, islice
from typing import Any
from zlib import crc32

import msgspec
from msgspec import Raw

from server.api.errors import ApiError, bad_request

TABLE = 2**13
"""Numbers that words are hashed to."""

MOST_WORDS = 4096
"""Words of a prompt that its answer's length is predicted from."""

MOST_TEXTS = 4096  # texts that words are looked for in

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

LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n")

LATEST = 2**53  # milliseconds of a deadline

KEPT = ("file_id", "file_ids", "vector_store_ids", "container")  # fields of parts and tools that name what is kept
REFERENCE = frozenset({"id", "type", "version", "variables"})  # fields of an item or prompt that only names one

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
    previous_response_id: Any = None
    conversation: Any = None
    tools: Raw = msgspec.field(default_factory=Raw)
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
        parts = (_texts(msgspec.json.decode(raw)) for name in TEXTS if memoryview(raw := getattr(self, name)))
        for text in islice(chain.from_iterable(parts), MOST_TEXTS):
            found += [crc32(word.encode()) % TABLE for word in _WORD.findall(text[:LONGEST].lower())]
            if len(found) >= MOST_WORDS:
                break
        return tuple(found[:MOST_WORDS])

    def kept(self) -> str:
        """The field by which the call asks for what a backend keeps; empty for none."""
        for name in ("previous_response_id", "conversation"):
            if getattr(self, name) is not None:
                return name
        fields = ((name, getattr(self, name)) for name in (*TEXTS, "tools"))
        return next((name for name, raw in fields if memoryview(raw) and _refers(msgspec.json.decode(raw))), "")


def read_meta(body: bytes) -> CallMeta:
    """The fields of a JSON body; raises ApiError 400 where it is none."""
    with refuse_unreadable():
        meta = msgspec.json.decode(body, type=CallMeta)
    for name in LIMITS:
        if type(limit := getattr(meta, name)) is int and abs(limit) >= 2**63:
            raise bad_request(f"{name}: must be a number of at most 64 bits", name)
    return meta


@contextmanager
def refuse_unreadable() -> Iterator[None]:
    """Raise ApiError 400 for a body, or a field of one, that is no JSON."""
    try:
        yield
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise bad_request(f"the request's body is not a JSON object: {error}", code="invalid_json") from None


def read_deadline(meta: CallMeta, arrival: float) -> float | None:
    """When the answer is wanted, in seconds of the clock by which it arrived; raises ApiError 400."""
    if meta.deadline_ms is None:
        return None
    if not _is_count(meta.deadline_ms) or not 1 <= meta.deadline_ms <= LATEST:
        raise ApiError(400, f"deadline_ms: must be a whole number from 1 to {LATEST}", param="deadline_ms")
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


def _refers(value: Any) -> bool:
    """Whether a prompt, or a list of tools, names what a backend keeps; arguments of calls are no names."""
    match value:
        case list():
            return any(map(_refers, value))
        case dict():
            bare = "id" in value and value.keys() <= REFERENCE
            named = bare or any(isinstance(value.get(name), str | list) and value[name] for name in KEPT)
            return named or any(_refers(one) for name, one in value.items() if name != "input")
    return False


def salted(body: bytes, holder: str) -> bytes:
    """The body with a `cache_salt` of its key, made with the client's own where it has one."""
    fields = msgspec.json.decode(body, type=dict[str, Raw])
    salt = sha256(f"{holder}/".encode() + bytes(fields.get("cache_salt", b""))).hexdigest()
    return msgspec.json.encode(fields | {"cache_salt": Raw(f'"{salt}"'.encode())})
