"""Lengths by the tokens of prompts: what counts of a prompt, what is learned of it, and what nobody can learn."""

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler.length.features import OPENING
from scheduler.length.online import Answers, fit
from scheduler.length.words import BUCKETS, FIRST, LAST, Prompts, WordScore, bag, held_out_scores

LONG = 7
"""The token that long answers are asked for with."""


def drawn(count: int, seed: int) -> list[list[int]]:
    """Prompts of random tokens, every fourth with LONG in it, behind its opening."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(100, 400, rng.integers(20, 60)).tolist() for _ in range(count)]
    for one in prompts[::4]:
        one.insert(rng.integers(OPENING, len(one)), LONG)
    return prompts


def prompts(tokens: list[list[int]]) -> Prompts:
    """Prompts of which nothing but their tokens is known."""
    return Prompts(np.array([[len(one)] for one in tokens], dtype=np.float32), [*map(bag, tokens)])


def lengths(tokens: list[list[int]], seed: int = 0) -> NDArray[np.float32]:
    spread = np.exp(0.2 * np.random.default_rng(seed).normal(size=len(tokens)))
    return np.array([(400 if LONG in one else 20) for one in tokens] * spread, dtype=np.float32)


def test_a_prompt_is_the_tokens_that_it_has_and_those_it_begins_with() -> None:
    tokens = [5, 9, 5, 1, 2, 3, 4, 6, 8, 9, 5]
    found = bag(tokens)
    assert (np.diff(found) > 0).all()
    assert (found < BUCKETS).sum() == len(set(tokens)) and (found >= BUCKETS).sum() == len(set(tokens[:OPENING]))
    assert set(bag(tokens[::-1])[:8]) == set(found[:8])
    assert len(bag(())) == 0


def test_of_a_long_prompt_both_ends_count() -> None:
    middle = bag([*range(FIRST), *range(10_000, 20_000), *range(FIRST, FIRST + LAST)])
    assert middle.tolist() == bag(range(FIRST + LAST)).tolist()


def test_buckets_are_spread_evenly() -> None:
    for ids in (range(16_384), range(0, 8 * 16_384, 8)):
        counts = np.bincount(np.concatenate([bag([one])[:1] for one in ids]), minlength=BUCKETS)
        assert counts.max() <= 4 * len(ids) / BUCKETS


def test_one_word_tells_the_length_wherever_it_stands() -> None:
    seen, unseen = drawn(300, 1), drawn(100, 2)
    scores = WordScore.fit(prompts(seen), lengths(seen)).scores(prompts(unseen))
    long = np.array([LONG in one for one in unseen])
    assert np.mean(scores[long][:, np.newaxis] > scores[~long]) > 0.95
    answers = Answers(prompts(seen), lengths(seen), np.zeros(300, dtype=bool))
    means = np.array([one.mean for one in fit(answers).distributions(prompts(unseen))])
    assert means[long].mean() > 5 * means[~long].mean()


def test_scores_that_a_forest_learns_from_do_not_know_the_answer() -> None:
    """Of 300 prompts whose answers hang on nothing, a regression of hundreds of tokens knows each that it has seen."""
    tokens = drawn(300, 3)
    noise = np.exp(np.random.default_rng(4).normal(size=300)).astype(np.float32)
    known = WordScore.fit(prompts(tokens), noise).scores(prompts(tokens))
    held_out = held_out_scores(prompts(tokens), noise)
    assert np.corrcoef(known, np.log(noise))[0, 1] > 0.7
    assert abs(np.corrcoef(held_out, np.log(noise))[0, 1]) < 0.15


@pytest.mark.parametrize("count", [2, 3, 7])
def test_few_answers_are_scored_too(count: int) -> None:
    tokens = drawn(count, 5)
    assert np.isfinite(held_out_scores(prompts(tokens), lengths(tokens))).all()
