"""A predictor with the cache before it: who is asked, and what is learnt."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scheduler.length.cache import CachedPredictor, LengthCache
from scheduler.length.features import FloatMatrix, LengthQuery
from scheduler.length.prediction import Estimate, LengthDistribution, Source


class Fakes:
    """An embedder of letter counts, and a predictor that says 50 of everything it is asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.read: int | None = None

    async def embed(self, texts: Sequence[str]) -> FloatMatrix:
        read = [text[: self.read] for text in texts]
        return np.array([[text.count(letter) + 0.01 for letter in "abc"] for text in read], dtype=np.float32)

    async def estimate(self, queries: Sequence[LengthQuery]) -> Sequence[Estimate]:
        self.asked.append([one.user_input for one in queries])
        return [Estimate((1.0,), LengthDistribution.certain(50), Source.PROXY) for _ in queries]


def query(text: str) -> LengthQuery:
    return LengthQuery("", text, 1, 1000)


async def test_near_duplicates_of_what_has_ended_never_reach_the_predictor() -> None:
    fakes, cache = Fakes(), LengthCache()
    predictor = CachedPredictor(fakes, fakes.embed, cache)
    assert [one.source for one in await predictor.estimate([query("aaaa"), query("bbbb")])] == [Source.PROXY] * 2
    predictor.ended(query("aaaa"), 7)
    found = await predictor.estimate([query("cccc"), query("aaaa"), query("bbbb")])
    told = [(one.source, one.distribution.mean) for one in found if one.distribution is not None]
    assert told == [(Source.PROXY, 50), (Source.CACHE, 7), (Source.PROXY, 50)]
    assert found[1].features == (), "nothing that a forest could learn from"
    assert fakes.asked == [["aaaa", "bbbb"], ["cccc", "bbbb"]]
    assert [one.source for one in await predictor.estimate([query("aaaa")])] == [Source.CACHE]
    assert len(fakes.asked) == 2
    predictor.ended(query("aaaa"), 10)
    assert (cache.lookups, cache.hits) == (6, 2)


async def test_rounds_that_begin_alike_are_told_apart_by_their_ends() -> None:
    """The embedder here, as real ones do, reads the beginning of a text: its first 100 characters."""
    fakes, cache = Fakes(), LengthCache()
    fakes.read = 100
    predictor = CachedPredictor(fakes, fakes.embed, cache)
    rounds = [query("a" * 2000 + letter * 190) for letter in "bc"]
    await predictor.estimate(rounds[:1])
    predictor.ended(rounds[0], 7)
    assert [one.source for one in await predictor.estimate(rounds)] == [Source.CACHE, Source.PROXY]


async def test_a_scope_is_told_nothing_of_what_another_has_sent() -> None:
    fakes, cache = Fakes(), LengthCache()
    predictor = CachedPredictor(fakes, fakes.embed, cache)
    own, other = replace(query("aaaa"), scope="a"), replace(query("aaaa"), scope="b")
    await predictor.estimate([own])
    predictor.ended(own, 7)
    assert [one.source for one in await predictor.estimate([other, own])] == [Source.PROXY, Source.CACHE]
    predictor.ended(other, 9)
    told = [one.distribution for one in await predictor.estimate([own, other])]
    assert [one and one.mean for one in told] == [7, 9]


async def test_an_answer_to_what_was_never_asked_is_ignored() -> None:
    fakes, cache = Fakes(), LengthCache()
    CachedPredictor(fakes, fakes.embed, cache).ended(query("a"), 7)
    assert len(cache) == 0


def test_a_conversation_is_the_instruction_and_all_that_followed() -> None:
    assert LengthQuery("Be brief.", "hi\nhello\nand now?", 3, 9).conversation == "Be brief.\nhi\nhello\nand now?"
    assert query("hi").conversation == "hi"
