"""Text to calls, however the text is cut into pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api.input.tools import BETWEEN, CALL_TAIL, call_head, call_text
from server.api.output.reading import (
    CallPiece,
    FoundCalls,
    GuaranteedCalls,
    Piece,
    Reader,
    TextPiece,
    split,
)

NAMES = frozenset({"f", "weather-now"})


def found() -> Reader:
    return FoundCalls(NAMES)


def read(reader: Reader, parts: Sequence[str]) -> tuple[str, list[tuple[str, str]]]:
    """The text and the calls that come out."""
    pieces: list[Piece] = []
    for place, part in enumerate(parts):
        pieces += reader.push(part, last=place == len(parts) - 1)
    return joined(pieces)


def joined(pieces: Sequence[Piece]) -> tuple[str, list[tuple[str, str]]]:
    text, calls = "", list[list[str]]()
    for piece in pieces:
        match piece:
            case TextPiece(more):
                text += more
            case CallPiece(index, more, ""):
                assert index == len(calls) - 1
                calls[-1][1] += more
            case CallPiece(index, arguments, _, name):
                assert index == len(calls)
                calls.append([name, arguments])
    return text, [(name, arguments) for name, arguments in calls]


def cut(text: str, places: Sequence[int]) -> list[str]:
    ends = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[begin:end] for begin, end in zip(ends, ends[1:], strict=False)]


CALL = call_text("f", {"x": "}\n</tool_call"})
SAMPLES: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    # what: (text, what is said, what is called)
    "nothing": ("", "", []),
    "text": ("Hello. \n", "Hello. \n", []),
    "half a mark": ("a <tool_cal", "a <tool_cal", []),
    "a call": (CALL, "", [("f", '{"x":"}\\n</tool_call"}')]),
    "two calls": (f"{CALL}\n{CALL}\n", "", [("f", '{"x":"}\\n</tool_call"}')] * 2),
    "text around": (f"One.\n\n{CALL}\nTwo. ", "One.\nTwo.", [("f", '{"x":"}\\n</tool_call"}')]),
    "no end": ('<tool_call>{"name": "f", "arguments": {}}', "", [("f", "{}")]),
    "no arguments": ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    "another order": ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", [("f", '{"a":1}')]),
    "a list": ('<tool_call>[{"name": "f"}, {"name": "f"}]</tool_call>', "", [("f", "{}")] * 2),
    "an empty list": ("<tool_call>[]</tool_call>", "<tool_call>[]</tool_call>", []),
    "no JSON": ("<tool_call>f(1)</tool_call> ok", "<tool_call>f(1)</tool_call> ok", []),
    "an unknown name": ('<tool_call>{"name": "g"}</tool_call>', '<tool_call>{"name": "g"}</tool_call>', []),
    "arguments of text": (
        '<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
        [],
    ),
    "cut short": ('Hm. <tool_call>{"name": "f", "argum', 'Hm. <tool_call>{"name": "f", "argum', []),
    "a number": ("<tool_call>3</tool_call>", "<tool_call>3</tool_call>", []),
}


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
@given(places=st.lists(st.integers(0, 200), max_size=6))
def test_calls_are_found_wherever_the_text_is_cut(
    sample: tuple[str, str, list[tuple[str, str]]], places: list[int]
) -> None:
    text, said, called = sample
    found_text, found_calls = read(found(), cut(text, places))
    assert found_calls == called
    assert found_text.split() == said.split()
    if not called:
        assert found_text == said


def test_only_the_first_call_counts_where_one_is_wanted() -> None:
    reader = FoundCalls(NAMES, parallel=False)
    assert read(reader, [f"{CALL}{CALL}"])[1] == [("f", '{"x":"}\\n</tool_call"}')]
    assert reader.calls == 1


GUARANTEED: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "a call": (CALL, "", [("f", '{"x":"}\\n</tool_call"}')]),
    "two calls": (
        f"{CALL}{BETWEEN}{call_text('weather-now', {})}",
        "",
        [("f", '{"x":"}\\n</tool_call"}'), ("weather-now", "{}")],
    ),
    "an answer": ('{"a": "<tool_call>"}', '{"a": "<tool_call>"}', []),
    "nothing": ("", "", []),
    "cut in the mark": ("<tool_c", "", []),
    "cut in the head": ('<tool_call>\n{"name": "f', "", []),
    "cut in the arguments": (CALL[:48], "", [("f", CALL[len(call_head("f")) : 48])]),
    "cut in the tail": (CALL[:-3], "", [("f", '{"x":"}\\n</tool_call"}')]),
    "cut before the tail": (CALL[:-14], "", [("f", '{"x":"}\\n</tool_call"}')]),
    "cut after a brace": (CALL[:-13], "", [("f", '{"x":"}\\n</tool_call"}')]),
}


@pytest.mark.parametrize("sample", GUARANTEED.values(), ids=GUARANTEED)
@given(places=st.lists(st.integers(0, 200), max_size=6))
def test_guaranteed_calls_are_read_wherever_the_text_is_cut(
    sample: tuple[str, str, list[tuple[str, str]]], places: list[int]
) -> None:
    text, said, called = sample
    assert read(GuaranteedCalls(), cut(text, places)) == (said, called)


def test_arguments_that_are_cut_short_are_told_as_far_as_they_go() -> None:
    text = call_text("f", {"city": "Graz", "day": "today"})
    begin = text.index('{"city')
    arguments = text[begin : -len(CALL_TAIL)]
    for end in range(begin, len(text) + 1):
        assert read(GuaranteedCalls(), [text[:end]]) == ("", [("f", text[begin:end][: len(arguments)])])


@pytest.mark.parametrize("make", [found, GuaranteedCalls], ids=["found", "guaranteed"])
def test_every_call_has_an_id_of_its_own(make: Callable[[], Reader]) -> None:
    pieces = make().push(f"{CALL}{BETWEEN}{call_text('f', {'x': 'another'})}", last=True)
    ids = [piece.id for piece in pieces if isinstance(piece, CallPiece) and piece.id]
    assert len(set(ids)) == 2


@given(st.text("ab<", max_size=12), st.text("ab<", min_size=1, max_size=3))
def test_what_is_held_back_may_still_become_the_mark(text: str, mark: str) -> None:
    before, there, after = split(text, mark)
    assert before + (mark if there else "") + after == text
    assert there == (mark in text)
    if not there:
        assert mark.startswith(after)
        assert not any(mark.startswith(text[place:]) for place in range(len(before)))
