"""The figures that stand in the texts of the papers, and where. Knows no measurement.

Plots without numbers in the text are left out: nothing is read off a curve. Baton's tables are in baton/paper.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

PERCENT, TIMES, SECONDS = "%", "x", "s"


@dataclass(frozen=True, slots=True)
class Published:
    """A range, its ends being equal where the text has one number."""

    low: float
    high: float
    unit: str
    where: str
    """Section and figure."""


def _percent(low: float, high: float, where: str) -> Published:
    return Published(low, high, PERCENT, where)


def _one(value: float, unit: str, where: str) -> Published:
    return Published(value, value, unit, where)


@dataclass(frozen=True, slots=True)
class Gains:
    """Published gains of a strategy over another, in percent: more throughput, less response time."""

    throughput: Published
    mean: Published
    tail: Published


_MAGNUS = "IV-B, Fig. 11"
_ABLATION = "IV-C, Fig. 13"

MAGNUS_OVER: Mapping[str, Gains] = MappingProxyType(
    {
        "vsq": Gains(_percent(193, 234, _MAGNUS), _percent(80.4, 89.7, _MAGNUS), _percent(76.9, 91.7, _MAGNUS)),
        "ccb": Gains(_percent(66, 85.3, _MAGNUS), _percent(60.3, 73.5, _MAGNUS), _percent(53.2, 77.5, _MAGNUS)),
    }
)
"""Magnus's gains over single baselines."""

MAGNUS_OVER_ALL = Gains(_percent(66, 234, _MAGNUS), _percent(60.3, 89.7, _MAGNUS), _percent(53.2, 91.7, _MAGNUS))
"""Magnus's gains over vs, vsq and ccb together."""
MAGNUS_VALID_TOKENS = _percent(70, 240, "IV-B, Fig. 10")
MAGNUS_TOTAL_TOKENS = _percent(115, 489, "IV-B, Fig. 10")

GLP_VALID_TOKENS = _percent(35.7, 36.8, "IV-C, Fig. 12")
"""glp over vs."""
ABP_TOTAL_TOKENS = _percent(106, 145, "IV-C, Fig. 12")
"""abp over glp."""
ABP_OVER_GLP = Gains(_percent(42.7, 74.3, _ABLATION), _percent(46.4, 63.5, _ABLATION), _percent(42.2, 54.3, _ABLATION))
HRRN_MEAN = _percent(5.1, 21.8, _ABLATION)
"""magnus over abp."""
HRRN_TAIL = _percent(13.7, 41.9, _ABLATION)

MAGNUS_RMSE = 15.649
"""Tokens: the error of Magnus's predictor for ChatGLM-6B (III-B, Table II, USIN)."""

_SCLS = "5.2, Fig. 12"

SCLS_OVER_SLS: Mapping[str, Gains] = MappingProxyType(
    {
        "hf": Gains(_percent(232.3, 315.8, _SCLS), _percent(82.4, 84.9, _SCLS), _percent(79.8, 81.0, _SCLS)),
        "ds": Gains(_percent(82.5, 191.9, _SCLS), _percent(80.8, 91.1, _SCLS), _percent(76.6, 88.9, _SCLS)),
    }
)
"""By inference engine: transformers and DeepSpeed."""
SCLS_OVER_ILS = Gains(_percent(61.6, 171.0, _SCLS), _percent(78.4, 88.3, _SCLS), _percent(74.6, 85.8, _SCLS))
SCLS_BATCH_SIZE: Mapping[str, Published] = MappingProxyType(
    {"hf": _percent(100.3, 226.1, "5.2, Fig. 13b"), "ds": _percent(43.2, 86.1, "5.2, Fig. 13b")}
)
"""Batch size of scls over that of sls."""
SCLS_EARLY_RETURNS = _percent(0, 1, "5.2, Fig. 14b")
"""Batches that end before their slice does, of all batches: "a maximal proportion less than 1 %"."""


@dataclass(frozen=True, slots=True)
class Sjf:
    """Published gains of short jobs first over FCFS: less mean JCT in percent, times the throughput."""

    jct: Published
    throughput: Published


def _sjf(jct: float, throughput: float, jct_figure: str, throughput_figure: str) -> Sjf:
    return Sjf(_one(jct, PERCENT, f"4.2, {jct_figure}"), _one(throughput, TIMES, f"4.2, {throughput_figure}"))


SSJF_RATES: Mapping[str, Sjf] = MappingProxyType(
    {
        "ssjf-none": _sjf(34.5, 3.6, "Fig. 4a", "Fig. 6a"),
        "ssjf-dynamic": _sjf(39.6, 3.0, "Fig. 4b", "Fig. 6b"),
        "ssjf-continuous": _sjf(33.2, 2.8, "Fig. 4c", "Fig. 6c"),
        "sjf-oracle-none": _sjf(43.7, 4.7, "Fig. 4a", "Fig. 6a"),
        "sjf-oracle-dynamic": _sjf(58.2, 4.1, "Fig. 4b", "Fig. 6b"),
        "sjf-oracle-continuous": _sjf(43.0, 3.2, "Fig. 4c", "Fig. 6c"),
    }
)
"""With varying rates."""

SSJF_BURSTINESS: Mapping[str, Sjf] = MappingProxyType(
    {
        "ssjf-none": _sjf(30.5, 2.6, "Fig. 5a", "Fig. 7a"),
        "ssjf-dynamic": _sjf(39.0, 2.6, "Fig. 5b", "Fig. 7b"),
        "ssjf-continuous": _sjf(35.0, 2.2, "Fig. 5c", "Fig. 7c"),
        "sjf-oracle-none": _sjf(37.6, 3.4, "Fig. 5a", "Fig. 7a"),
        "sjf-oracle-dynamic": _sjf(52.9, 3.8, "Fig. 5b", "Fig. 7b"),
        "sjf-oracle-continuous": _sjf(41.5, 2.7, "Fig. 5c", "Fig. 7c"),
    }
)
"""With varying burstiness."""

SSJF_ACCURACY = 0.615
"""Accuracy of SSJF's predictor over five classes of length (4.3, Table 2, REG (L1))."""
SSJF_CLASSES = 5

SSJF_ROUND_ACCURACY: Mapping[str, float] = MappingProxyType({"round 1": 0.619, "round 2": 0.60})
"""The best and the worst of its predictor by conversation round (4.3, Fig. 9)."""
SSJF_ROUNDS = Sjf(_percent(33.1, 38.9, "4.2, Fig. 9"), Published(1.67, 2.22, TIMES, "4.2, Fig. 9"))
"""Over FCFS, from round 5 to round 1; the text does not say in which mode."""


def baton_seconds(value: float, where: str) -> Published:
    return _one(value, SECONDS, where)


def baton_times(value: float, where: str) -> Published:
    return _one(value, TIMES, where)
