"""The prefix cache keeps the longest prefix of whole chunks, shared by all that begin alike, within its bound."""

from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st

from engine.kv.prefix_cache import CHUNK, PrefixCache
from tests.engine.invariants import check


@dataclass(frozen=True)
class Kept:
    """A block of one byte a token, which knows of what prompt and place it was made."""

    prompt: tuple[int, ...]
    place: slice
    bytes: int = CHUNK
    in_host_memory: bool = True


def keep(cache: PrefixCache[Kept], prompt: tuple[int, ...], scope: str = "") -> list[slice]:
    """Keep a prompt; returns the chunks whose K and V were copied for it."""
    made: list[slice] = []

    def make(place: slice) -> Kept:
        made.append(place)
        return Kept(prompt[: place.stop], place)

    cache.keep(prompt, scope, make)
    check(cache)
    return made


def find(cache: PrefixCache[Kept], prompt: tuple[int, ...], scope: str = "") -> list[Kept]:
    """Blocks of one prompt."""
    return cache.find([(prompt, scope)])[0]


def chunks(*names: int, rest: int = 0) -> tuple[int, ...]:
    """A prompt of chunks that each consist of one token, and some tokens more."""
    return tuple(name for name in names for _ in range(CHUNK)) + (99,) * rest


def test_a_prompt_is_read_from_its_longest_kept_prefix_on() -> None:
    cache = PrefixCache[Kept](100 * CHUNK)
    keep(cache, chunks(1, 2, 3, rest=5))
    assert cache.length(chunks(1, 2, 4, 3)) == 2 * CHUNK
    assert [block.place.start for block in find(cache, chunks(1, 2, 3, 4))] == [0, CHUNK, 2 * CHUNK]
    assert (cache.queries, cache.hits) == (4 * CHUNK, 3 * CHUNK)
    assert cache.length(chunks(2, 1)) == 0


def test_prompts_that_are_read_together_begin_where_the_least_kept_one_ends() -> None:
    cache = PrefixCache[Kept](100 * CHUNK)
    keep(cache, chunks(1, 2, 3))
    keep(cache, chunks(4))
    found = cache.find([(chunks(1, 2, 3, 9), ""), (chunks(4, 5), ""), (chunks(1, 2, rest=3), "")])
    assert [[block.place.start for block in blocks] for blocks in found] == [[0], [0], [0]]
    assert [len(blocks) for blocks in cache.find([(chunks(1, 2, 3), ""), (chunks(8), "")])] == [0, 0]
    assert cache.hits == 3 * CHUNK


def test_what_prompts_share_is_kept_once() -> None:
    cache = PrefixCache[Kept](100 * CHUNK)
    assert len(keep(cache, chunks(7, 1))) == 2
    assert [place.start for place in keep(cache, chunks(7, 2, 3))] == [CHUNK, 2 * CHUNK]
    assert len(cache._children) == 4 and cache.bytes == 4 * CHUNK


def test_the_least_recently_used_goes_first_and_never_what_others_begin_with() -> None:
    cache = PrefixCache[Kept](4 * CHUNK)
    keep(cache, chunks(1, 2))
    keep(cache, chunks(1, 3))
    find(cache, chunks(1, 2, rest=1))
    keep(cache, chunks(1, 4, 5))
    assert cache.length(chunks(1, 3, rest=1)) == CHUNK, "the one that nobody asked for"
    assert cache.length(chunks(1, 2, rest=1)) == 2 * CHUNK
    keep(cache, chunks(8, 9, 10, 11))
    assert len(cache._children) == 4 and cache.length(chunks(1, 2)) == 0


def test_what_went_while_the_rest_was_copied_is_not_hung_upon() -> None:
    cache = PrefixCache[Kept](2 * CHUNK)
    keep(cache, chunks(1))

    def push_out(place: slice) -> Kept:
        keep(cache, chunks(5, 6))
        return Kept(chunks(1, 2)[: place.stop], place)

    cache.keep(chunks(1, 2), "", push_out)
    check(cache)
    assert cache.length(chunks(1, 2, 3)) == 0 and cache.length(chunks(5, 6, 7)) == 2 * CHUNK


PROMPTS = st.lists(st.integers(0, 2), max_size=5).map(lambda names: chunks(*names, rest=len(names) % 3))


@pytest.mark.parametrize("capacity", [0, 1, CHUNK, 3 * CHUNK, 50 * CHUNK])
@given(steps=st.lists(st.tuples(st.booleans(), PROMPTS, st.sampled_from("ab")), max_size=30))
def test_a_block_stands_for_just_its_own_tokens(capacity: int, steps: list[tuple[bool, tuple[int, ...], str]]) -> None:
    cache = PrefixCache[Kept](capacity)
    for reads, prompt, scope in steps:
        if not reads:
            keep(cache, prompt, scope)
            continue
        length = cache.length(prompt, scope)
        blocks = find(cache, prompt, scope)
        assert length == CHUNK * len(blocks) < max(1, len(prompt))
        for index, block in enumerate(blocks):
            assert block.place == slice(index * CHUNK, (index + 1) * CHUNK)
            assert block.prompt == prompt[: block.place.stop]
        check(cache)


def test_what_a_program_is_expected_to_read_again_stays_before_later_ones() -> None:
    """Until the seconds are over in which it was expected back."""
    time = [0.0]
    cache = PrefixCache[Kept](2 * CHUNK, now=lambda: time[0])
    program, other, third, fourth = ((token,) * CHUNK for token in range(4))
    for prompt, back_within in ((program, 5.0), (other, 0.0), (third, 0.0)):
        time[0] += 1.0
        cache.keep(prompt, "", lambda columns: Kept((), slice(0)), back_within)
        check(cache)
    assert [cache.length((*one, 9)) for one in (program, other, third)] == [CHUNK, 0, CHUNK]
    time[0] = 7.0
    keep(cache, other)
    keep(cache, fourth)
    assert [cache.length((*one, 9)) for one in (program, other, fourth)] == [0, CHUNK, CHUNK]


def test_of_programs_in_turn_that_do_not_fit_some_are_kept_whole() -> None:
    """By the latest use alone none of three programs of two blocks would find any of its own in three blocks."""
    time = [0.0]
    cache = PrefixCache[Kept](3 * CHUNK, now=lambda: time[0])
    programs = [chunks(one, 10 + one) for one in range(3)]
    for turn in range(9):
        time[0] += 1.0
        cache.keep(programs[turn % 3], "", lambda columns: Kept((), columns), 60.0)
        check(cache)
    assert [cache.length((*one, 9)) for one in programs] == [2 * CHUNK, CHUNK, 0]


def test_what_a_waiting_call_is_to_read_stays_until_then() -> None:
    time = [0.0]
    cache = PrefixCache[Kept](2 * CHUNK, now=lambda: time[0])
    waits, *others = (chunks(name) for name in range(4))
    keep(cache, waits)
    assert cache.length((*waits, 9), read_within=10.0) == CHUNK
    for prompt in others:
        time[0] += 1.0
        keep(cache, prompt)
    assert [cache.length((*one, 9)) for one in (waits, *others)] == [CHUNK, 0, 0, CHUNK]
