"""Flags of `lengthwise paper` that cannot be followed together, or with the paper that is named."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from models.errors import UserError

REAL_ONLY = ("model", "executors", "length_scale", "loads", "rounds")
"""Flags that mean nothing to the simulator; None where they are not given."""

INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "scale": "give --length-scale and --executors, which say how much of a paper's size fits",
        "rates": "give --loads, multiples of what the baseline serves here",
    }
)
"""Remedies on the real engine, by the flag that is for the simulator."""

FIXED_BY_BATON: Mapping[str, str] = MappingProxyType(
    {
        "duration": "its queries are all there from the start",
        "loads": "its queries are all there from the start",
        "executors": "its tables have one",
        "trace": "its queries are drawn as its text says",
        "input_scale": "its queries are drawn as its text says",
    }
)
"""Reasons why Baton's tables leave no choice on the real engine, by flag."""

DEFAULTS: Mapping[str, float] = MappingProxyType({"scale": 1.0, "input_scale": 1.0})


def refuse(args: argparse.Namespace) -> None:
    """Raises UserError for the first flag that cannot be followed."""
    given = {name for name, value in vars(args).items() if value is not None and value != DEFAULTS.get(name)}
    if not args.real:
        for name in REAL_ONLY:
            if name in given:
                raise UserError(f"{_flag(name)} is for the real engine: add --real, or leave it out")
        if args.paper == "baton" and given & {"trace", "input_scale"}:
            raise UserError("Baton's queries are drawn as its text says: leave --trace and --input-scale out")
        return
    for name, remedy in INSTEAD.items():
        if name in given:
            raise UserError(f"{_flag(name)} is for the simulator: with --real {remedy}")
    for name, why in FIXED_BY_BATON.items() if args.paper == "baton" else ():
        if name in given:
            raise UserError(f"{_flag(name)} with baton: {why}; leave it out")


def choose(known: Sequence[str], names: Sequence[str] | None) -> Sequence[str]:
    """The experiments to run, all unless there are names; raises UserError for one that is not known."""
    if names is None:
        return known
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise UserError(f"--experiments: {', '.join(unknown) or 'nothing'} is none of {', '.join(known)}")
    return names


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
