"""What is known of a prompt: compressed embeddings (Magnus, section III-B), the served model's own, and its tokens."""

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler.length.features import FEATURES, GROUPS, OPENING, Ablation, TokenFeatures, assemble, compress, select
from scheduler.length.online import Answers, fit
from scheduler.length.words import BUCKETS, FIRST, LAST, Prompts, WordScore, bag, held_out_scores


def floats(*rows: list[float]) -> np.ndarray:
    return np.array(rows, dtype=np.float32)


def test_each_group_is_summed_and_divided_by_the_root_of_its_size() -> None:
    embedding = floats([1, 2, 3, 4, 10, 20, 30, 40])
    assert compress(embedding, 2).tolist() == [[10 / 2, 100 / 2]]
    assert compress(embedding, 8).tolist() == embedding.tolist()


def test_groups_that_do_not_divide_the_embedding_differ_by_one_value_and_none_is_empty() -> None:
    assert sorted(compress(floats([1, 1, 1, 1, 1]), 2)[0].tolist()) == pytest.approx([2 / 2**0.5, 3 / 3**0.5])
    with pytest.raises(ValueError, match="3 values cannot be cut into 4 groups"):
        compress(floats([1, 2, 3]), 4)


def test_a_request_becomes_4_numbers_of_its_instruction_16_of_its_input_and_its_length() -> None:
    instruction, user_input = np.full((2, 32), 1, dtype=np.float32), np.full((2, 32), 2, dtype=np.float32)
    features = assemble(instruction, user_input, np.array([7, 9], dtype=np.float32))
    assert features.dtype == np.float32
    assert features.tolist() == [pytest.approx([8 / 8**0.5] * 4 + [4 / 2**0.5] * 16 + [length]) for length in (7, 9)]


COLUMNS = [(Ablation.RAFT, [20]), (Ablation.INST, [0, 1, 2, 3, 20]), (Ablation.USIN, list(range(21)))]


@pytest.mark.parametrize(("ablation", "columns"), COLUMNS)
def test_an_ablation_sees_its_own_columns(ablation: Ablation, columns: list[int]) -> None:
    assert select(np.arange(FEATURES, dtype=np.float32)[None, :], ablation).tolist() == [columns]


EMBEDDINGS = np.random.default_rng(0).normal(size=(40, 50)).astype(np.float32)


def test_features_are_the_compressed_means_of_all_tokens_and_of_the_first_and_their_number() -> None:
    tokens = [3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8]
    features = TokenFeatures.of([EMBEDDINGS[:13], EMBEDDINGS[13:]]).read(tokens)
    means = np.stack((EMBEDDINGS[tokens].mean(axis=0), EMBEDDINGS[tokens[:OPENING]].mean(axis=0)))
    assert features[:-1] == pytest.approx(compress(means, GROUPS).ravel(), abs=1e-5)
    assert features[-1] == len(tokens)


def test_no_tokens_are_features_too_and_a_token_without_embedding_is_an_error() -> None:
    features = TokenFeatures.of([EMBEDDINGS])
    assert TokenFeatures.of([EMBEDDINGS[:, :4]]).table.shape == (40, 4), "of a small model"
    assert features.read(()) == (0.0,) * (2 * GROUPS + 1)
    with pytest.raises(IndexError):
        features.read([40])


def test_digests_tell_tables_apart_and_survive_32_bits() -> None:
    one, other = TokenFeatures.of([EMBEDDINGS]), TokenFeatures.of([EMBEDDINGS + 1])
    assert one.digest != other.digest
    assert float(np.float32(one.digest)) == one.digest == TokenFeatures.of([EMBEDDINGS]).digest


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
