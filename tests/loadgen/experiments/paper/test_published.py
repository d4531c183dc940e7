"""The papers' figures are used as printed: here they are once more, typed from the texts."""

from __future__ import annotations

from itertools import groupby

import pytest

from loadgen.experiments.paper.gains import TITLES, read_published
from loadgen.experiments.paper.magnus import serving as magnus
from loadgen.experiments.paper.ssjf import experiments as ssjf
from loadgen.experiments.paper.ssjf.place import ACCURACY

GAINS = {
    "magnus-main": [
        ("vsq", 193, 234, 80.4, 89.7, 76.9, 91.7),
        ("ccb", 66, 85.3, 60.3, 73.5, 53.2, 77.5),
        ("vs", 66, 234, 60.3, 89.7, 53.2, 91.7, 70, 240, 115, 489),
        ("ccb", 70, 240, 115, 489),
        ("vsq", 70, 240, 115, 489),
    ],
    "magnus-ablation": [
        ("vs", 35.7, 36.8),
        ("glp", 106, 145, 42.7, 74.3, 46.4, 63.5, 42.2, 54.3),
        ("abp", 5.1, 21.8, 13.7, 41.9),
    ],
    "scls-hf": [
        ("sls", 232.3, 315.8, 82.4, 84.9, 79.8, 81.0),
        ("ils", 61.6, 171.0, 78.4, 88.3, 74.6, 85.8),
        ("sls", 100.3, 226.1),
    ],
    "scls-ds": [
        ("sls", 82.5, 191.9, 80.8, 91.1, 76.6, 88.9),
        ("ils", 61.6, 171.0, 78.4, 88.3, 74.6, 85.8),
        ("sls", 43.2, 86.1),
    ],
}


@pytest.mark.parametrize("table", GAINS)
def test_gains(table: str) -> None:
    rows = read_published("gains", table)
    assert all(figure in TITLES for _, _, figure, *_ in rows)
    by_baseline = [
        (old, *(end for _, _, _, low, high, _ in own for end in (low, high)))
        for old, own in groupby(rows, key=lambda row: row[1])
    ]
    assert by_baseline == GAINS[table]


def test_ssjf() -> None:
    def read(table: str) -> list[tuple[float, float]]:
        rows = read_published("short-jobs-first", table)
        assert all(jct[0] == jct[1] and times[0] == times[1] for _, jct, _, times, _ in rows)
        return [(jct[0], times[0]) for _, jct, _, times, _ in rows]

    modes = [f"{order}-{mode}" for order in ("ssjf", "sjf-oracle") for mode in ("none", "dynamic", "continuous")]
    assert all([row[0] for row in read_published("short-jobs-first", one)] == modes for one in ("rates", "burstiness"))
    assert read("rates") == [(34.5, 3.6), (39.6, 3.0), (33.2, 2.8), (43.7, 4.7), (58.2, 4.1), (43.0, 3.2)]
    assert read("burstiness") == [(30.5, 2.6), (39.0, 2.6), (35.0, 2.2), (37.6, 3.4), (52.9, 3.8), (41.5, 2.7)]
    for _, jct, _, times, _ in read_published("short-jobs-first", "rounds"):
        assert (jct, times) == ([33.1, 38.9], [1.67, 2.22])
    assert dict(ssjf.ROUND_ACCURACY) == {"round 1": 0.619, "round 2": 0.6}
    assert ACCURACY == 0.615 and magnus.RMSE == 15.649
