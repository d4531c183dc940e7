"""The end of an answer, read only where an API puts it: answers may repeat clients' text."""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Raw
from msgspec.json import Decoder

LINES = 16  # last lines searched
LONGEST_NAME = 256  # characters kept of an id or model
LIMITED = frozenset({"length", "model_length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"})
LAST = frozenset({"message_stop", "response.completed", "response.incomplete", "response.failed"})  # types of events
SURROGATE = re.compile(rb"(?<!\\)\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
COUNTS = ("completion_tokens", "output_tokens")  # completions have the first, responses and messages the second

T = TypeVar("T")
Fields = dict[str, Raw]
NULL = Raw(b"null")


class Choice(msgspec.Struct, frozen=True):
    finish_reason: Any = None


class Item(msgspec.Struct, frozen=True):
    id: str = ""


ANY: Decoder[Any] = Decoder(Any)
TEXT: Decoder[Any] = Decoder(str)
TOKENS = Decoder(Annotated[int, msgspec.Meta(ge=0)])
SMALL = Decoder(Annotated[int, msgspec.Meta(ge=0, lt=2**53)])
FIELDS, CHOICES, ITEMS = Decoder(Fields), Decoder(list[Choice]), Decoder(list[Item])


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    tokens: int | None  # None if unstated or truncated
    reasons: frozenset[str]  # the backend's words for it
    finished: bool  # says that it ends
    ids: tuple[str, ...]  # a response's, then its items'
    number: int | None  # of its last event


@dataclass(slots=True)
class SentResponse:
    """What a client has of it; all but the id for /v1/responses."""

    id: str
    model: str
    created_at: int
    number: int = -1  # of the last event

    def read(self, lines: Iterable[bytes]) -> None:
        """From the first event that has it in a stream."""
        events = _events(_data(islice((line for line in lines if b'"id"' in line), LINES)))
        begun = (one for event in events for one in (event, _read(event, "message", FIELDS) or {}) if "id" in one)
        fields = next(begun, Fields())
        self.id = (_read(fields, "id", TEXT) or self.id)[:LONGEST_NAME]
        self.model = (_read(fields, "model", TEXT) or self.model)[:LONGEST_NAME]
        self.created_at = _read(fields, "created_at", SMALL) or self.created_at


def read_end(tail: bytes, *, streams: bool) -> AnswerEnd:
    lines = reversed(tail.rsplit(b"\n", LINES)[-LINES:])
    events = [*_events(_data(lines) if streams else (tail,))]
    reasons = {word for event in events for word in _reasons(event) if isinstance(word, str) and word}
    failed = any(_read(event, "error", ANY) for event in events)
    return AnswerEnd(
        next((count for event in events for count in _counts(event) if count is not None), None),
        frozenset(reasons | {"error"} if failed else reasons),
        bool(reasons) or any(_read(event, "type", TEXT) in LAST for event in events),
        next((ids for event in events if (ids := _ids(event))[0]), ()),
        next((one for event in events if (one := _read(event, "sequence_number", SMALL)) is not None), None),
    )


def _data(lines: Iterable[bytes]) -> Iterator[bytes]:
    return (one[5:] for one in lines if one.startswith(b"data:"))


def _events(data: Iterable[bytes]) -> Iterator[Fields]:
    """Each with the response in it; no malformed field hides another."""
    for line in data:
        event = _decode(line, FIELDS)
        if event is None and SURROGATE.search(line):  # half a pair, in no number or id
            event = _decode(SURROGATE.sub(b"?", line), FIELDS)
        if event is not None:
            yield event
            if (response := _read(event, "response", FIELDS)) is not None:
                yield response


def _counts(event: Fields) -> Iterator[int | None]:
    usage = _read(event, "usage", FIELDS) or {}
    return (_read(usage, name, TOKENS) for name in COUNTS)


def _reasons(event: Fields) -> Iterator[Any]:
    yield from (one.finish_reason for one in _read(event, "choices", CHOICES) or ())
    yield _read(event, "stop_reason", ANY)
    for name, inner in (("delta", "stop_reason"), ("incomplete_details", "reason")):
        yield _read(_read(event, name, FIELDS) or {}, inner, ANY)


def _ids(event: Fields) -> tuple[str, ...]:
    items = _read(event, "output", ITEMS) or ()
    return (_read(event, "id", TEXT) or "", *(item.id for item in items))


def _read(fields: Fields, name: str, decoder: Decoder[T]) -> T | None:
    return _decode(fields[name], decoder) if fields.get(name, NULL) != NULL else None


def _decode(raw: bytes | Raw, decoder: Decoder[T]) -> T | None:
    with suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
        return decoder.decode(raw)
    return None
