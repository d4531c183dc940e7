"""The papers' figures are used as printed: here they are once more, typed from the texts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from loadgen.experiments.paper import published
from loadgen.experiments.paper.published import Gains, Published, Sjf

BOTH = [
    (published.MAGNUS_OVER_ALL, (66, 234), (60.3, 89.7), (53.2, 91.7)),
    (published.MAGNUS_OVER["vsq"], (193, 234), (80.4, 89.7), (76.9, 91.7)),
    (published.MAGNUS_OVER["ccb"], (66, 85.3), (60.3, 73.5), (53.2, 77.5)),
    (published.ABP_OVER_GLP, (42.7, 74.3), (46.4, 63.5), (42.2, 54.3)),
    (published.SCLS_OVER_SLS["hf"], (232.3, 315.8), (82.4, 84.9), (79.8, 81.0)),
    (published.SCLS_OVER_SLS["ds"], (82.5, 191.9), (80.8, 91.1), (76.6, 88.9)),
    (published.SCLS_OVER_ILS, (61.6, 171.0), (78.4, 88.3), (74.6, 85.8)),
]


@pytest.mark.parametrize(("gains", "throughput", "mean", "tail"), BOTH)
def test_gains(
    gains: Gains, throughput: tuple[float, float], mean: tuple[float, float], tail: tuple[float, float]
) -> None:
    assert [(one.low, one.high) for one in (gains.throughput, gains.mean, gains.tail)] == [throughput, mean, tail]


@pytest.mark.parametrize(
    ("one", "ends"),
    [
        (published.MAGNUS_VALID_TOKENS, (70, 240)),
        (published.MAGNUS_TOTAL_TOKENS, (115, 489)),
        (published.GLP_VALID_TOKENS, (35.7, 36.8)),
        (published.ABP_TOTAL_TOKENS, (106, 145)),
        (published.HRRN_MEAN, (5.1, 21.8)),
        (published.HRRN_TAIL, (13.7, 41.9)),
        (published.SCLS_BATCH_SIZE["hf"], (100.3, 226.1)),
        (published.SCLS_BATCH_SIZE["ds"], (43.2, 86.1)),
        (published.SCLS_EARLY_RETURNS, (0, 1)),
    ],
)
def test_ranges(one: Published, ends: tuple[float, float]) -> None:
    assert (one.low, one.high) == ends


def test_ssjf() -> None:
    def both(said: Mapping[str, Sjf]) -> list[tuple[float, float]]:
        return [(one.jct.low, one.throughput.low) for one in said.values()]

    modes = [f"{order}-{mode}" for order in ("ssjf", "sjf-oracle") for mode in ("none", "dynamic", "continuous")]
    assert list(published.SSJF_RATES) == list(published.SSJF_BURSTINESS) == modes
    assert both(published.SSJF_RATES) == [(34.5, 3.6), (39.6, 3.0), (33.2, 2.8), (43.7, 4.7), (58.2, 4.1), (43.0, 3.2)]
    assert both(published.SSJF_BURSTINESS) == [
        (30.5, 2.6), (39.0, 2.6), (35.0, 2.2), (37.6, 3.4), (52.9, 3.8), (41.5, 2.7),
    ]  # fmt: skip
    rounds = published.SSJF_ROUNDS
    assert (rounds.jct.low, rounds.jct.high, rounds.throughput.low, rounds.throughput.high) == (33.1, 38.9, 1.67, 2.22)
    assert dict(published.SSJF_ROUND_ACCURACY) == {"round 1": 0.619, "round 2": 0.6}
    assert published.SSJF_ACCURACY == 0.615 and published.MAGNUS_RMSE == 15.649
