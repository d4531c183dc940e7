"""Predictions for a simulated scheduler: as exact as was asked for, the same each time."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.sampling.params import SamplingParams
from loadgen.simulate.prediction import read_prediction
from models.errors import UserError

NO_SIGMAS = ("", "0", "-1", "nan", "inf")


@pytest.mark.parametrize("text", ["none", "oracle", "noisy:0.3", "noisy:2", "inverted", "tenfold", "file:a/b.txt"])
def test_it_reads_what_it_writes(text: str) -> None:
    assert str(read_prediction(text)) == text


@pytest.mark.parametrize("text", ["", "good:0.3", "file:", "inverted:2", "noisy", *map("noisy:{}".format, NO_SIGMAS)])
def test_what_is_no_prediction_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="noisy:SIGMA"):
        read_prediction(text)


def told(text: str, *lengths: int, most: int = 100_000, seed: int = 0) -> list[Any]:
    source = read_prediction(text).source(seed)
    assert source is not None
    return [source(SamplingParams(most, replay_tokens=length)) for length in lengths]


def test_an_oracle_knows_and_nobody_knows_nothing() -> None:
    assert told("oracle", 17) == [17.0]
    assert read_prediction("none").source(0) is None


def test_errors_are_log_normal_and_the_distribution_is_as_wide() -> None:
    found = told("noisy:0.5", *[1000] * 500, seed=1)
    medians = np.log([float(np.median(one.lengths)) / 1000 for one in found])
    assert abs(medians.mean()) < 0.1 and abs(medians.std() - 0.5) < 0.05
    assert np.log(found[0].lengths).std() == pytest.approx(0.5, abs=0.03)
    assert math.log(found[0].mean / float(np.median(found[0].lengths))) == pytest.approx(0.5**2 / 2, abs=0.02)


def test_a_seed_says_all() -> None:
    one, two, other = ([each.mean for each in told("noisy:0.5", *[200] * 5, seed=seed)] for seed in (3, 3, 4))
    assert one == two != other


def test_no_length_is_more_than_may_be_generated_or_less_than_a_token() -> None:
    assert all(one.lengths.min() >= 1 and one.lengths.max() <= 30 for one in told("noisy:3", *[20] * 50, most=30))


def test_a_predictor_may_mislead() -> None:
    assert told("inverted", 1, 400, 1000, most=1000) == [1000.0, 601.0, 1.0]
    assert set(told("tenfold", *[50] * 40)) == {5.0, 500.0}
    assert told("tenfold", *[50] * 40) == told("tenfold", *[50] * 40)


def test_a_file_says_what_each_request_is_predicted_to_generate(tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("7\n250.5\n")
    assert told(f"file:{file}", 1, 1) == [7.0, 250.5]
    with pytest.raises(UserError, match="cannot be read"):
        read_prediction(f"file:{tmp_path / 'none'}").source(0)


@pytest.mark.parametrize("line", ["", "many", "0", "-3", "nan", "inf"])
def test_a_file_with_anything_but_lengths_is_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text(f"7\n{line}\n")
    with pytest.raises(UserError, match="lengths.txt, line 2: .*a number above 0 is wanted"):
        read_prediction(f"file:{file}").source(0)
