"""When a row ends, and what of its text is shown by then."""

from typing import Any

import pytest

from engine.device import similar_lengths
from engine.messages import REPETITION, FinishReason, RowUpdate
from engine.row import Choice, Row
from engine.sampling.params import Grammar, GrammarKind
from models.text import Text
from tests.engine.rows import END_TOKEN, row_of


@pytest.fixture
def ids(tiny_text: Text) -> dict[str, int]:
    """The token of each printable character; `$` is the end token, and `½` half a character."""
    half = next(index for index in range(320) if tiny_text.token_bytes(index) == b"\xd0")
    return {chr(code): tiny_text.encode(chr(code))[0] for code in range(32, 127)} | {"$": END_TOKEN, "½": half}


def feed(row: Row, tokens: list[int]) -> list[RowUpdate]:
    """Let the row take tokens until it ends."""
    updates: list[RowUpdate] = []
    for token in tokens:
        updates.append(row.accept(Choice(token)))
        if updates[-1].finish_reason is not None:
            break
    return updates


def spell(row: Row, ids: dict[str, int], word: str) -> tuple[str, FinishReason | None, str | int | None]:
    """All text of a row that takes a word's letters, and how it ended."""
    updates = feed(row, [ids[letter] for letter in word])
    assert all(update.finish_reason is None for update in updates[:-1])
    return "".join(update.text for update in updates), updates[-1].finish_reason, updates[-1].stop_reason


STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
REPLAY = {"replay_tokens": 5}


ENDS = [
    ({}, "ab$cd", ("ab", STOP, None)),
    ({}, "$", ("", STOP, None)),
    ({"ignore_eos": True, "max_tokens": 4}, "ab$cd", ("abc", LENGTH, None)),
    ({"max_tokens": 3}, "abcd", ("abc", LENGTH, None)),
    ({"max_tokens": 3}, "ab$", ("ab", STOP, None)),  # an end token at the limit is still a stop
    ({"stop": ("bc",)}, "abcd", ("a", STOP, "bc")),
    ({"stop": ("bc",), "include_stop_str_in_output": True}, "abcd", ("abc", STOP, "bc")),
    ({"stop": ("bc",)}, "ab$", ("ab", STOP, None)),  # what was held back is shown at the end
    ({"stop": ("bcd",), "max_tokens": 3}, "abcd", ("abc", LENGTH, None)),
    ({"stop": ("bc",), "max_tokens": 3}, "abcd", ("a", STOP, "bc")),
    ({"stop": ("x", "c", "b")}, "abcd", ("a", STOP, "b")),
    ({"min_tokens": 2}, "ab$c", ("ab", STOP, None)),  # the first token after the least may end the row
    ({"min_tokens": 2, "stop": ("b",)}, "abab", ("aba", STOP, "b")),  # stop strings within the least are text
    ({"replay_tokens": 1}, "abc", ("a", STOP, None)),
    (REPLAY, "a$bcde", ("abcd", STOP, None)),  # a replayed row has its length whatever the model says
    (REPLAY | {"stop": ("bc",)}, "abcdef", ("abcde", STOP, None)),
    (REPLAY | {"stop": ("efg",)}, "abcdef", ("abcde", STOP, None)),  # nothing is held back for a stop string
    (REPLAY | {"stop": ("b",), "min_tokens": 1}, "abcdef", ("abcde", STOP, None)),
    (REPLAY | {"max_tokens": 5}, "abcdef", ("abcde", STOP, None)),
    (REPLAY | {"max_tokens": 4}, "abcdef", ("abcd", LENGTH, None)),
]


@pytest.mark.parametrize(("sampling", "word", "expected"), ENDS)
def test_a_row_ends_as_its_rules_say(
    tiny_text: Text, ids: dict[str, int], sampling: dict[str, Any], word: str, expected: tuple[str, FinishReason, Any]
) -> None:
    assert spell(row_of(tiny_text, **sampling), ids, word) == expected


def test_a_stop_token_ends_the_row_and_is_named_but_not_shown(tiny_text: Text, ids: dict[str, int]) -> None:
    row = row_of(tiny_text, stop_token_ids=(ids["c"], ids["d"]))
    assert spell(row, ids, "abcd") == ("ab", STOP, ids["c"])
    row = row_of(tiny_text, stop_token_ids=(END_TOKEN,), ignore_eos=True)
    assert spell(row, ids, "ab$") == ("ab", STOP, END_TOKEN)


# min_tokens


def test_what_would_end_a_row_is_barred_until_it_has_its_least_tokens(tiny_text: Text, ids: dict[str, int]) -> None:
    row = row_of(tiny_text, min_tokens=2, stop_token_ids=(9,))
    barred = [row.barred_at(row.step)]
    for letter in "abc":
        row.accept(Choice(ids[letter]))
        barred.append(row.barred_at(row.step))
    assert barred == [{END_TOKEN, 9}, {END_TOKEN, 9}, set(), set()]
    assert row_of(tiny_text, min_tokens=2, ignore_eos=True, stop_token_ids=(9,)).barred_at(0) == {9}


# Replayed lengths


def test_a_stop_token_does_not_end_a_replayed_row_and_is_not_barred(tiny_text: Text, ids: dict[str, int]) -> None:
    row = row_of(tiny_text, replay_tokens=3, stop_token_ids=(ids["b"],), min_tokens=2)
    assert row.barred_at(0) == set()
    assert spell(row, ids, "abcd") == ("abc", STOP, None)


# Repetitions


REPEATED = [
    ({}, (512, LENGTH, None)),  # only where the operator wants it
    ({"stop_repetition": True}, (258, STOP, REPETITION)),  # "xy", and 256 tokens of "abc"
    ({"stop_repetition": True, "min_tokens": 300}, (301, STOP, REPETITION)),
    ({"stop_repetition": True, "max_tokens": 100}, (100, LENGTH, None)),
    ({"stop_repetition": True, "stop": ("xyabc",)}, (5, STOP, "xyabc")),
    ({"stop_repetition": True, "ignore_eos": True}, (512, LENGTH, None)),
    ({"stop_repetition": True, "replay_tokens": 400}, (400, STOP, None)),
    ({"stop_repetition": True, "grammar": Grammar(GrammarKind.REGEX, "xy(abc)*")}, (512, LENGTH, None)),
]


@pytest.mark.parametrize(("sampling", "expected"), REPEATED)
def test_an_answer_that_repeats_itself_ends_where_that_is_wanted_and_its_length_is_its_own(
    tiny_text: Text, ids: dict[str, int], sampling: dict[str, Any], expected: tuple[int, FinishReason, Any]
) -> None:
    row = row_of(tiny_text, **{"max_tokens": 512, **sampling})
    updates = feed(row, [ids[letter] for letter in "xy" + "abc" * 200])
    assert (len(updates), updates[-1].finish_reason, updates[-1].stop_reason) == expected


def test_text_held_back_for_a_stop_string_is_shown_at_a_repetition(tiny_text: Text, ids: dict[str, int]) -> None:
    row = row_of(tiny_text, max_tokens=512, stop_repetition=True, stop=("a" * 256 + "b",))
    assert "".join(update.text for update in feed(row, [ids["a"]] * 300)) == "a" * 256


# Characters


def test_a_stop_string_of_several_bytes_is_found_across_tokens(tiny_text: Text) -> None:
    halves = [index for value in "ж".encode() for index in range(320) if tiny_text.token_bytes(index) == bytes([value])]
    updates = feed(row_of(tiny_text, stop=("жж",)), halves * 3)
    assert len(updates) == 4
    assert ("".join(update.text for update in updates), updates[-1].stop_reason) == ("", "жж")


HALVES = [
    ({"max_tokens": 2}, "a½", ["a", ""]),
    ({"replay_tokens": 2}, "a½", ["a", ""]),
    ({}, "a½$", ["a", "", ""]),
    ({"max_tokens": 3}, "a½b", ["a", "", "\ufffdb"]),  # no end cuts it off
]


@pytest.mark.parametrize(("sampling", "word", "said"), HALVES)
def test_half_a_character_at_the_end_is_left_out_but_its_token_counts(
    tiny_text: Text, ids: dict[str, int], sampling: dict[str, Any], word: str, said: list[str]
) -> None:
    updates = feed(row_of(tiny_text, **sampling), [ids[letter] for letter in word])
    assert [update.text for update in updates] == said
    assert [update.token_ids for update in updates] == [(ids[letter],) for letter in word]


# Lengths and reports


def test_groups_of_similar_length_have_few_cells_and_little_padding(tiny_text: Text) -> None:
    rows = [row_of(tiny_text, tuple(range(3, 3 + length))) for length in (2, 50, 9, 10, 3, 10)]
    lengths = [[len(row.prompt) for row in group] for group in similar_lengths(rows, lambda row: len(row.prompt), 20)]
    assert lengths == [[50], [10, 10], [9], [3, 2]]
