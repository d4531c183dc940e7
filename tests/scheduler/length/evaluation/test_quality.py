"""The figures of SSJF's Table 2, by hand."""

import numpy as np
import pytest

from scheduler.length.evaluation import quality

EDGES = (10.0, 20.0)


def array(*values: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.array(values, dtype=np.float32)


def test_accuracy_and_f1_count_classes() -> None:
    """Classes 0 0 1 2, of which the last is taken for 1: F1 is 1, 2/3 and 0."""
    one = quality(array(1, 9, 10, 19), array(2, 3, 12, 30), EDGES)
    assert one["accuracy"] == 0.75 and one["f1"] == pytest.approx(5 / 9)
    assert one["mae"] == pytest.approx((1 + 6 + 2 + 11) / 4) and one["tau"] == 1.0
