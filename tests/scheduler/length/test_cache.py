"""The length cache by hand, and a predictor with it before it: who is asked, and what is learnt."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler.length.cache import CachedPredictor, LengthCache
from scheduler.length.features import FloatMatrix, LengthQuery
from scheduler.length.prediction import Estimate, LengthDistribution, Source


def towards(degrees: float, norm: float = 1.0) -> NDArray[np.float32]:
    """A direction in the plane."""
    angle = np.radians(degrees)
    return np.array([norm * np.cos(angle), norm * np.sin(angle)], dtype=np.float32)


def cache_of(*entries: tuple[float, int], capacity: int = 8) -> LengthCache:
    """Near is within 10 degrees; all prompts are of 100 tokens."""
    cache = LengthCache(capacity, threshold=float(np.cos(np.radians(10.0))))
    for degrees, length in entries:
        cache.add(towards(degrees), 100, length)
    return cache


@pytest.mark.parametrize(("degrees", "length"), [(0, 7), (9.9, 7), (10.1, None), (180, None), (41, 9), (-9, 7)])
def test_the_length_of_the_most_similar_prompt_is_found_if_near_enough(degrees: float, length: int | None) -> None:
    assert cache_of((0, 7), (50, 8), (40, 9)).find(towards(degrees, norm=3.0), 100) == length


@pytest.mark.parametrize(("prompt", "length"), [(100, 7), (90, 7), (111, 7), (89, None), (112, None)])
def test_prompts_of_other_lengths_are_no_duplicates(prompt: int, length: int | None) -> None:
    """Embedders read the beginning only: a question after a long document must not pass for another."""
    assert cache_of((0, 7)).find(towards(0), prompt) == length


def test_the_latest_answer_to_a_near_duplicate_counts() -> None:
    cache = cache_of((0, 7), (5, 11))
    assert len(cache) == 1 and cache.find(towards(0), 100) == 11


def test_what_was_not_used_for_longest_is_forgotten_first() -> None:
    cache = cache_of((0, 1), (40, 2), (80, 3), capacity=3)
    assert cache.find(towards(0), 100) == 1
    cache.add(towards(120), 100, 4)
    assert [cache.find(towards(degrees), 100) for degrees in (0, 40, 80, 120)] == [1, None, 3, 4]
    cache.add(towards(160), 100, 5)
    assert [cache.find(towards(degrees), 100) for degrees in (0, 80, 120, 160)] == [None, 3, 4, 5]
    assert len(cache) == 3


def test_a_prompt_is_its_own_duplicate_at_the_strictest_threshold() -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 384)).astype(np.float32)
    cache = LengthCache(threshold=1.0)
    for place, vector in enumerate(vectors):
        cache.add(vector, 100, place + 1)
    assert [cache.find(vector * 2, 100) for vector in vectors] == list(range(1, 51))


def test_an_embedding_without_direction_is_refused() -> None:
    with pytest.raises(ValueError, match="points nowhere"):
        cache_of().find(np.zeros(2, dtype=np.float32), 1)


class Fakes:
    """An embedder of letter counts, and a predictor that says 50 of everything it is asked."""

    def __init__(self, read: int | None = None) -> None:
        """`read`: characters from the beginning, as real embedders do."""
        self.asked: list[list[str]] = []
        self.read, self.cache = read, LengthCache()
        self.predictor = CachedPredictor(self, self.embed, self.cache)

    async def sources(self, *queries: LengthQuery) -> list[Source]:
        return [one.source for one in await self.predictor.estimate(queries)]

    async def embed(self, texts: Sequence[str]) -> FloatMatrix:
        read = [text[: self.read] for text in texts]
        return np.array([[text.count(letter) + 0.01 for letter in "abc"] for text in read], dtype=np.float32)

    async def estimate(self, queries: Sequence[LengthQuery]) -> Sequence[Estimate]:
        self.asked.append([one.user_input for one in queries])
        return [Estimate((1.0,), LengthDistribution.certain(50), Source.PROXY) for _ in queries]


def query(text: str) -> LengthQuery:
    return LengthQuery("", text, 1, 1000)


async def test_near_duplicates_of_what_has_ended_never_reach_the_predictor() -> None:
    fakes = Fakes()
    fakes.predictor.ended(query("aaaa"), 7)
    assert len(fakes.cache) == 0, "it was never asked"
    assert await fakes.sources(query("aaaa"), query("bbbb")) == [Source.PROXY] * 2
    fakes.predictor.ended(query("aaaa"), 7)
    found = await fakes.predictor.estimate([query("cccc"), query("aaaa"), query("bbbb")])
    told = [(one.source, one.distribution.mean) for one in found if one.distribution is not None]
    assert told == [(Source.PROXY, 50), (Source.CACHE, 7), (Source.PROXY, 50)]
    assert found[1].features == (), "nothing that a forest could learn from"
    assert await fakes.sources(query("aaaa")) == [Source.CACHE]
    assert fakes.asked == [["aaaa", "bbbb"], ["cccc", "bbbb"]]
    fakes.predictor.ended(query("aaaa"), 10)
    assert (fakes.cache.lookups, fakes.cache.hits) == (6, 2)


@pytest.mark.parametrize(
    ("own", "other"),
    [
        (query("a" * 2000 + "b" * 190), query("a" * 2000 + "c" * 190)),  # rounds are told apart by their ends
        (replace(query("aaaa"), scope="a"), replace(query("aaaa"), scope="b")),  # of what another sent nothing is told
    ],
)
async def test_what_begins_alike_or_comes_from_another_is_another(own: LengthQuery, other: LengthQuery) -> None:
    fakes = Fakes(read=100)
    await fakes.predictor.estimate([own])
    fakes.predictor.ended(own, 7)
    assert await fakes.sources(other, own) == [Source.PROXY, Source.CACHE]
    fakes.predictor.ended(other, 9)
    told = [one.distribution for one in await fakes.predictor.estimate([own, other])]
    assert [one and one.mean for one in told] == [7, 9]


def test_a_conversation_is_the_instruction_and_all_that_followed() -> None:
    assert LengthQuery("Be brief.", "hi\nhello\nand now?", 3, 9).conversation == "Be brief.\nhi\nhello\nand now?"
    assert query("hi").conversation == "hi"
