"""The length cache by hand: what counts as near, what is forgotten, and what is counted."""

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler.length.cache import LengthCache


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


def test_lookups_and_hits_are_counted() -> None:
    cache = cache_of()
    assert (cache.lookups, cache.hits) == (0, 0)
    assert cache.find(towards(0), 100) is None
    cache.add(towards(0), 100, 7)
    for _ in range(3):
        cache.find(towards(0), 100)
    assert (cache.lookups, cache.hits) == (4, 3)


def test_a_prompt_is_its_own_duplicate_at_the_strictest_threshold() -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 384)).astype(np.float32)
    cache = LengthCache(threshold=1.0)
    for place, vector in enumerate(vectors):
        cache.add(vector, 100, place + 1)
    assert [cache.find(vector * 2, 100) for vector in vectors] == list(range(1, 51))


@pytest.mark.parametrize("wrong", [{"capacity": 0}, {"threshold": 0.0}, {"threshold": 1.1}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="no length cache has"):
        LengthCache(**wrong)  # type: ignore[arg-type]


def test_an_embedding_without_direction_is_refused() -> None:
    with pytest.raises(ValueError, match="points nowhere"):
        cache_of().find(np.zeros(2, dtype=np.float32), 1)
