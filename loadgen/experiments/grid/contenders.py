"""The rules that the grid compares: all join rows of similar length as slots free, and differ in who is next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from scheduler.strategy import STRATEGIES, Strategy

BASE = "baton-pd"
"""First come, first served; what all are compared with."""

BOOST = 30.0
"""1/γ of boost, in works of the load's mean request: chosen well for it, since the rule itself does not say."""

CONTENDERS: Mapping[str, Strategy] = MappingProxyType(
    {
        BASE: STRATEGIES[BASE],
        "lengthwise": STRATEGIES["lengthwise"],
        **{name: STRATEGIES[name] for name in ("boost", "uniboost", "hrrn", "srpt", "gittins")},
        "sjf": replace(STRATEGIES["srpt"], name="sjf", preemption="none"),
    }
)
