"""Foretold lengths count as far as the client's record bears them out."""

from __future__ import annotations

import random

import numpy as np
import orjson
import pytest

from scheduler.length.distribution import LengthDistribution
from scheduler.length.prediction import Prediction, Source
from server.api.input.body import parse
from server.api.input.hints import FEWEST, MOST_CLIENTS, Hints
from server.api.input.schema import ChatBody


def prediction(length: float = 100.0) -> Prediction:
    lengths = np.array([0.5, 1.0, 1.5], dtype=np.float32) * length
    weights = np.full(3, 1 / 3, dtype=np.float32)
    return Prediction(length, Source.OWN, (), LengthDistribution(lengths, weights))


def weighed(hints: Hints, client: str, hint: int) -> float:
    told = hints.weigh(client, hint, prediction())
    assert told is not None and told.distribution is not None
    assert told.distribution.mean == pytest.approx(told.length, rel=1e-3)
    return told.length


def taught(say: str, answers: int = 200) -> Hints:
    """A client whose answers' lengths the predictor knows within a factor of 2, and what it says of them."""
    hints, rng = Hints(), random.Random(7)
    for _ in range(answers):
        true = round(100 * 2 ** rng.uniform(-2, 2))
        predicted = prediction(true * 2 ** rng.uniform(-1, 1))
        hints.learn("a", {"true": true, "ten": 10}[say], predicted, true)
    return hints


def test_a_client_that_knows_is_believed() -> None:
    assert weighed(taught("true"), "a", 300) == pytest.approx(300, rel=0.02)


def test_one_that_always_says_ten_gains_nothing() -> None:
    assert weighed(taught("ten"), "a", 10) == pytest.approx(100, rel=0.1)


def test_without_a_record_a_hint_counts_for_nothing() -> None:
    assert weighed(Hints(), "a", 10) == 100
    assert weighed(taught("true", FEWEST - 1), "a", 10) == 100
    assert weighed(taught("true"), "another", 10) == 100


def test_without_hint_prediction_or_answer_nothing_is_weighed_or_learned() -> None:
    hints = taught("true")
    assert hints.weigh("a", 50, None) is None
    known = prediction()
    assert hints.weigh("a", None, known) is known
    hints.learn("b", None, known, 5)
    hints.learn("b", 5, None, 5)
    hints.learn("b", 5, known, 0)
    assert "b" not in hints._records


def test_records_of_the_latest_clients_are_kept() -> None:
    hints = Hints()
    for number in range(MOST_CLIENTS + 5):
        hints.learn(str(number), 5, prediction(), 5)
    assert len(hints._records) == MOST_CLIENTS and "4" not in hints._records


@pytest.mark.parametrize(
    ("fields", "foretold"),
    [
        ({}, None),
        ({"expected_output_tokens": 7}, 7),
        ({"nvext": {"agent_hints": {"osl": 9, "priority": 3}}}, 9),
        ({"nvext": {"agent_hints": {"osl": 9}}, "expected_output_tokens": 7}, 7),
        ({"nvext": {}}, None),
    ],
)
def test_a_length_is_foretold_in_dynamos_words_or_in_ours(fields: dict[str, object], foretold: int | None) -> None:
    body = parse(orjson.dumps({"messages": [{"role": "user", "content": "Hi"}], **fields}), ChatBody)
    assert body.foretold_length == foretold
