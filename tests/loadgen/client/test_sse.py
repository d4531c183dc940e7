"""Framing of server-sent events, wherever the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.transcript import EventParser

STREAM = (
    ": welcome\n\n"
    "data: one\n\n"
    "event: x\ndata:two\ndata:  lines\nid: 7\n\n"
    "retry: 10\n\n"
    "data: \u732b\U0001f600\u00e9\r\n\r\n"
    "data: a:b\r\rdata\n\n"
    ":\n\n\n"
    "data: half"
).encode()
EVENTS = [b"one", b"two\n lines", "\u732b\U0001f600\u00e9".encode(), b"a:b", b""]


def parse(chunks: list[bytes]) -> list[bytes]:
    parser = EventParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


def test_comments_and_other_fields_are_left_out_and_lines_joined() -> None:
    assert parse([STREAM]) == EVENTS


def test_comments_go_to_who_asks_for_them() -> None:
    comments: list[bytes] = []
    EventParser(comments.append).feed(STREAM)
    assert comments == [b"welcome", b""]


@pytest.mark.parametrize("size", range(1, 12))
def test_pieces_of_any_size_give_the_same_events(size: int) -> None:
    assert parse([STREAM[at : at + size] for at in range(0, len(STREAM), size)]) == EVENTS


@given(st.lists(st.integers(0, len(STREAM))))
def test_cuts_anywhere_give_the_same_events(cuts: list[int]) -> None:
    assert parse([STREAM[a:b] for a, b in pairwise([0, *sorted(cuts), len(STREAM)])]) == EVENTS


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_an_event_is_given_as_soon_as_it_is_whole(end: str) -> None:
    parser = EventParser()
    assert parser.feed(f"data: x{end}".encode()) == []
    assert parser.feed(end.encode()) == [b"x"]
    assert parser.feed(f"data: y{end}{end}".encode()) == [b"y"]
