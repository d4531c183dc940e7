"""Features of a request by the served model's own embeddings: compressed means, by hand."""

import numpy as np
import pytest

from scheduler.length.features import GROUPS, OPENING, TokenFeatures, compress

EMBEDDINGS = np.random.default_rng(0).normal(size=(40, 50)).astype(np.float32)


def test_features_are_the_compressed_means_of_all_tokens_and_of_the_first_and_their_number() -> None:
    tokens = [3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8]
    features = TokenFeatures.of([EMBEDDINGS[:13], EMBEDDINGS[13:]]).read(tokens)
    means = np.stack((EMBEDDINGS[tokens].mean(axis=0), EMBEDDINGS[tokens[:OPENING]].mean(axis=0)))
    assert features[:-1] == pytest.approx(compress(means, GROUPS).ravel(), abs=1e-5)
    assert features[-1] == len(tokens)


def test_a_small_model_has_as_many_groups_as_numbers() -> None:
    assert TokenFeatures.of([EMBEDDINGS[:, :4]]).table.shape == (40, 4)


def test_no_tokens_are_features_too_and_a_token_without_embedding_is_an_error() -> None:
    features = TokenFeatures.of([EMBEDDINGS])
    assert features.read(()) == (0.0,) * (2 * GROUPS + 1)
    with pytest.raises(IndexError):
        features.read([40])


def test_digests_tell_tables_apart_and_survive_32_bits() -> None:
    one, other = TokenFeatures.of([EMBEDDINGS]), TokenFeatures.of([EMBEDDINGS + 1])
    assert one.digest != other.digest
    assert float(np.float32(one.digest)) == one.digest == TokenFeatures.of([EMBEDDINGS]).digest
