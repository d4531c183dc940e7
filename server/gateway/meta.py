"""Fields of a call that scheduling needs; the body stays bytes."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import chain, islice
from typing import Annotated, Any
from zlib import crc32

import msgspec
from msgspec import Meta, Raw

from server.api.errors import invalid
from server.api.input.body import parse, unreadable
from server.api.input.program import SignFields
from server.api.input.schema import MOST_ANSWERS, Deadline, ModelName, Priority, Promise

TABLE = 2**13  # word hashes

MOST_WORDS = 4096  # words used for length prediction

MOST_TEXTS = 4096  # texts searched for words

LONGEST = 2**16  # characters; longer texts are images or sound

BYTES_PER_TOKEN = 4  # no tokenizer is known

MOST_PROMPT = 2**15  # tokens; larger prompts contain images or sound

TEXTS = ("system", "instructions", "messages", "prompt", "input")  # in reading order

INNER = ("content", "text")  # of messages and parts

MOST = ("max_completion_tokens", "max_tokens", "max_output_tokens")

LIMITS = (*MOST, "n")

# fields that reference stored objects, and objects whose `id` does
KEPT = frozenset(
    ("previous_response_id", "conversation", "file_id", "file_ids", "image_id", "vector_store_ids")
    + ("container", "container_id", "remote_block_ids")
)
HOLDERS = frozenset({"prompt", "conversation", "container", "session_params", "audio", "voice"})
REFERENCE = frozenset({"id", "type", "status"})  # fields of a pure reference
OPAQUE = frozenset({"metadata", "parameters", "schema", "input_schema", "input_examples", "input"})  # clients' own

_UNSPACED = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff"  # CJK characters, words of their own

_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
_ASCII = "".join(one.lower() if one.isalnum() or one == "_" else " " for one in map(chr, range(128)))


class _Hashes(dict[str, int]):
    def __missing__(self, word: str) -> int:
        self[word] = found = crc32(word.encode()) % TABLE
        return found


class CallMeta(SignFields, frozen=True):
    """Malformed values that concern backends are left to them."""

    model: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    n: Any = None
    min_tokens: Any = None
    ignore_eos: Any = None
    stop: Any = None
    user: Any = None
    priority: Priority | None = None
    deadline_ms: Deadline | None = None
    promise: Promise | None = None
    stream: Any = None
    stream_options: Any = None
    store: Any = None
    prompt: Raw = msgspec.field(default_factory=Raw)

    @property
    def most(self) -> int | None:
        given = (getattr(self, name) for name in MOST)
        return next((one for one in given if _is_count(one) and one > 0), None)

    @property
    def least(self) -> int:
        if self.ignore_eos is True and not self.stop:
            return self.most or 0
        return self.min_tokens if _is_count(self.min_tokens) else 0

    @property
    def choices(self) -> int:
        """For each prompt."""
        return self.n if _is_count(self.n) and 1 <= self.n <= MOST_ANSWERS else 1

    @property
    def answers(self) -> int:
        """Completions may have several prompts."""
        with suppress(msgspec.MsgspecError):
            prompts = msgspec.json.decode(self.prompt, type=list[Raw])
            if prompts and bytes(prompts[0])[:1] in (b'"', b"["):
                return self.choices * min(len(prompts), MOST_ANSWERS)
        return self.choices

    @property
    def asks_progress(self) -> bool:
        return isinstance(self.stream_options, dict) and self.stream_options.get("include_progress") is True

    @property
    def prompt_tokens(self) -> int:
        """From bytes."""
        size = sum(len(memoryview(getattr(self, name))) for name in TEXTS)
        return min(max(1, size // BYTES_PER_TOKEN), MOST_PROMPT)

    def words(self, fields: Mapping[str, Any] | None = None) -> tuple[int, ...]:
        """Hashes below TABLE, in order; `fields` of the body if decoded."""
        found, hashes = list[int](), _Hashes()
        raws = ((name, raw) for name in TEXTS if memoryview(raw := getattr(self, name)))
        parts = (_texts(msgspec.json.decode(raw) if fields is None else fields[name]) for name, raw in raws)
        for text in islice(chain.from_iterable(parts), MOST_TEXTS):
            found += map(hashes.__getitem__, chain.from_iterable(map(_split, text[:LONGEST].split("\n"))))
            if len(found) >= MOST_WORDS:
                break
        return tuple(found[:MOST_WORDS])

    def read_cache_key(self, client: str) -> str:
        """The client's name of the conversation, shortened, or empty."""
        key = self.prompt_cache_key
        own = key if isinstance(key, str) else ""
        return own and sha256(f"{client}/{own}".encode("utf-8", "surrogatepass")).hexdigest()


Limit = Annotated[int, Meta(ge=-1)]
CacheSalt = Annotated[str, Meta(min_length=1)]


class _Turn(msgspec.Struct, frozen=True):
    role: str
    content: str | list[Any] | None = None


class PossibleCall(msgspec.Struct, frozen=True):
    """What all backends require of a call; fields that only some take are ignored."""

    model: ModelName | None = None
    messages: Annotated[list[_Turn], Meta(min_length=1)] | None = None
    prompt: str | Annotated[list[str | int | list[int]], Meta(min_length=1)] | dict[str, Raw] | None = None
    input: str | Annotated[list[dict[str, Any]], Meta(min_length=1)] | None = None
    max_completion_tokens: Limit | None = None
    max_tokens: Limit | None = None
    max_output_tokens: Limit | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_ANSWERS)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    ignore_eos: bool | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: dict[str, Raw] | None = None
    user: str | None = None
    tools: list[dict[str, Raw]] | None = None
    cache_salt: CacheSalt | None = None
    echo: Any = None

    def check(self) -> None:
        """-1 is no limit to some backends. Raises ApiError 400."""
        given = [name for name in ("prompt", "input", "messages") if getattr(self, name) is not None]
        if len(given) != 1:
            fault = f"cannot go with {given[0]}" if given else "is missing"
            raise invalid("messages", f"{fault}; give messages, prompt or input, as the call would")
        for name in MOST:
            if getattr(self, name) == 0 and not self.echo:
                raise invalid(name, "must be at least 1", None if name == "max_tokens" else "invalid_value")


# null, which counts as absent, is none of the server's types
WANTED = {
    "messages: Expected `array | null`": "messages: Expected `array`",
    "prompt: Expected `str | object | array | null`": "prompt: Expected `str | array`",
    "input: Expected `str | array | null`": "input: Expected `str | array`",
}


def read_meta(body: bytes) -> CallMeta:
    """Raises ApiError 400 for invalid JSON."""
    meta = parse(body, CallMeta)
    for name in LIMITS:
        if type(limit := getattr(meta, name)) is int and abs(limit) >= 2**63:
            raise invalid(name, "must be a number of at most 64 bits", "invalid_value")
    return meta


@contextmanager
def refuse_unreadable(body: bytes) -> Iterator[None]:
    """Raises ApiError 400 for invalid JSON."""
    try:
        yield
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise unreadable(body, error) from None


def find_kept(fields: Mapping[str, Any]) -> str:
    """Field that references stored objects, or empty."""
    return next((name for name, one in fields.items() if name != "metadata" and _refers(name, one)), "")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _split(line: str) -> list[str]:
    """Words in lower case."""
    return line.translate(_ASCII).split() if line.isascii() else _WORD.findall(line.lower())


def _texts(value: Any) -> Iterator[str]:
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


def _refers(name: str, value: Any) -> bool:
    match value:
        case list():
            return any(_refers(name, one) for one in value)
        case dict():
            kind = value.get("type") or ("message" if "role" in value else "item_reference")
            item = name == "input" and (kind == "item_reference" or value.keys() <= REFERENCE)
            if value.get("id") is not None and (item or name in HOLDERS):
                return True
            return any(_refers(inner, one) for inner, one in value.items() if inner not in OPAQUE)
    return name in KEPT and value not in (None, "")


def without_promise(body: bytes) -> bytes:
    """The gateway's own field, which strict backends refuse."""
    fields = msgspec.json.decode(body, type=dict[str, Raw])
    del fields["promise"]
    return msgspec.json.encode(fields)


class _Salted(msgspec.Struct):
    cache_salt: CacheSalt | None = None


def salted(body: bytes, holder: str) -> bytes:
    """With a `cache_salt` from the key and the client's own. Raises ApiError 400."""
    fields = msgspec.json.decode(body, type=dict[str, Raw])
    if given := bytes(fields.get("cache_salt", b"")):
        parse(b'{"cache_salt":%b}' % given, _Salted)
    salt = sha256(f"{holder}/".encode() + given).hexdigest()
    return msgspec.json.encode(fields | {"cache_salt": Raw(f'"{salt}"'.encode())})
