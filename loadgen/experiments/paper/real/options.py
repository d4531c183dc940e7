"""Which flags of `lengthwise paper` mean something on the real engine, and which only in the simulator."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from types import MappingProxyType

from loadgen.experiments.paper.run import PaperError

INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "scale": "give --length-scale and --executors, which say how much of a paper's size fits",
        "rates": "give --loads, multiples of what the baseline serves here",
    }
)
"""What stands for flags that are for the simulator."""

ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "duration": "its queries are all there from the start",
        "loads": "its queries are all there from the start",
        "executors": "its tables have one",
        "trace": "its queries are drawn as its text says",
    }
)
"""What Baton's tables leave no choice in."""


def refuse_simulated(args: argparse.Namespace) -> None:
    """Raises PaperError for flags that only a simulation can follow."""
    for name, remedy in INSTEAD.items():
        if _given(args, name):
            raise PaperError(f"--{name} is for the simulator: with --real {remedy}")


def refuse_for_baton(args: argparse.Namespace) -> None:
    """Raises PaperError for flags that Baton's tables cannot follow."""
    for name, why in ELSEWHERE.items():
        if _given(args, name):
            raise PaperError(f"--{name} with baton: {why}; leave it out")
    if args.input_scale != 1:
        raise PaperError("--input-scale with baton: its queries are drawn as its text says; leave it out")


def _given(args: argparse.Namespace, name: str) -> bool:
    value = getattr(args, name)
    return value is not None and not (name == "scale" and value == 1)
