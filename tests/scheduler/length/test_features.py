"""Compression of embeddings against numbers worked out by hand (Magnus, section III-B)."""

import numpy as np
import pytest

from scheduler.length.features import FEATURES, Ablation, assemble, compress, select


def floats(*rows: list[float]) -> np.ndarray:
    return np.array(rows, dtype=np.float32)


def test_each_group_is_summed_and_divided_by_the_root_of_its_size() -> None:
    embedding = floats([1, 2, 3, 4, 10, 20, 30, 40])
    assert compress(embedding, 2).tolist() == [[10 / 2, 100 / 2]]
    assert compress(embedding, 8).tolist() == embedding.tolist()


def test_groups_that_do_not_divide_the_embedding_differ_by_one_value() -> None:
    compressed = compress(floats([1, 1, 1, 1, 1]), 2)
    assert sorted(compressed[0].tolist()) == pytest.approx([2 / 2**0.5, 3 / 3**0.5])


def test_an_embedding_with_fewer_values_than_groups_is_refused() -> None:
    with pytest.raises(ValueError, match="3 values cannot be cut into 4 groups"):
        compress(floats([1, 2, 3]), 4)


def test_a_request_becomes_4_numbers_of_its_instruction_16_of_its_input_and_its_length() -> None:
    instruction, user_input = np.full((2, 32), 1, dtype=np.float32), np.full((2, 32), 2, dtype=np.float32)
    features = assemble(instruction, user_input, np.array([7, 9], dtype=np.float32))
    assert features.shape == (2, FEATURES)
    assert features.dtype == np.float32
    expected = [8 / 8**0.5] * 4 + [4 / 2**0.5] * 16
    assert features[0].tolist() == pytest.approx([*expected, 7])
    assert features[1].tolist() == pytest.approx([*expected, 9])


@pytest.mark.parametrize(
    ("ablation", "columns"),
    [(Ablation.RAFT, [20]), (Ablation.INST, [0, 1, 2, 3, 20]), (Ablation.USIN, list(range(21)))],
)
def test_an_ablation_sees_its_own_columns(ablation: Ablation, columns: list[int]) -> None:
    features = np.arange(FEATURES, dtype=np.float32)[None, :]
    assert select(features, ablation).tolist() == [columns]
