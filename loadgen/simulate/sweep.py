"""`--sweep NAME=VALUES`: the flags of a simulation at every combination of some flags' values. Simulates nothing."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadgen.simulate.options import SimulatedLoad, SimulatedMachine, SimulatedScheduling, SimulateFlags
from models.errors import UserError
from models.options import options_of, suggest

NOISE = "noise"
"""An axis of its own: σ of `--prediction noisy:σ`, with 0 for an oracle."""

RANGE = re.compile(r"([-+.\de]+):([-+.\de]+):([-+.\de]+)")
MOST = 10_000
"""Values of an axis that are no slip of the hand."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A flag and its values."""

    name: str
    texts: tuple[str, ...]
    """The values as the user wrote them, ranges written out."""
    flag: str
    """The name of the flag among the arguments."""
    values: tuple[object, ...]

    @property
    def numbers(self) -> tuple[float, ...] | None:
        """The values as numbers; None where some are none."""
        try:
            return tuple(map(float, self.texts))
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Point:
    """One combination of values."""

    texts: tuple[str, ...]
    """A value of each axis."""
    flags: SimulateFlags


def name_values(axes: Sequence[Axis], texts: Sequence[str]) -> str:
    """Axes and their values in words."""
    return ", ".join(f"{axis.name} {text}" for axis, text in zip(axes, texts, strict=True))


def read_axes(sweeps: Sequence[str]) -> tuple[Axis, ...]:
    """The axes of `--sweep` flags, in their order. Raises UserError."""
    axes = tuple(map(_read_axis, sweeps))
    if len({axis.flag for axis in axes}) < len(axes):
        raise UserError("--sweep: two of them vary the same flag: write its values in one, parted by commas")
    return axes


def list_points(flags: SimulateFlags, axes: Sequence[Axis]) -> Iterator[Point]:
    """Every combination, the values of the last axis running fastest."""
    for places in itertools.product(*(range(len(axis.texts)) for axis in axes)):
        chosen = list(zip(axes, places, strict=True))
        changes: dict[str, Any] = {axis.flag: axis.values[place] for axis, place in chosen}
        yield Point(tuple(axis.texts[place] for axis, place in chosen), replace(flags, **changes))


def _read_axis(text: str) -> Axis:
    name, _, rest = text.partition("=")
    groups = (SimulatedMachine, SimulatedScheduling, SimulatedLoad)
    known = {one.name: one for group in groups for one in options_of(group) if one.name != "strategies"}
    flag = name.removeprefix("--").replace("-", "_")
    option = known.get("prediction" if flag == NOISE else flag)
    if option is None or not rest:
        near = suggest(flag, [*known, NOISE])
        raise UserError(f"--sweep {text}: write NAME=1,2,3 or NAME=FIRST:LAST:STEP with a flag of simulate{near}")
    texts = tuple(one for part in rest.split(",") for one in _write_out(text, part))
    try:
        values = tuple(option.from_text(_tell_noise(one) if flag == NOISE else one) for one in texts)
    except ValueError as error:
        raise UserError(f"--sweep {text}: {error}") from None
    return Axis(flag, texts, option.name, values)


def _tell_noise(sigma: str) -> str:
    return "oracle" if re.fullmatch(r"0*\.?0*", sigma) else f"noisy:{sigma}"


def _write_out(sweep: str, part: str) -> Iterator[str]:
    """The values of FIRST:LAST:STEP, the last one included; any other text is a value itself."""
    found = RANGE.fullmatch(part)
    if found is None:
        yield part
        return
    try:
        first, last, step = map(float, found.groups())
        count = int((last - first) / step + 1e-9) + 1
    except (ValueError, ZeroDivisionError):
        count = 0
    if not 0 < count <= MOST:
        raise UserError(f"--sweep {sweep}: {part} is no range FIRST:LAST:STEP of at most {MOST:,} numbers")
    yield from (f"{first + step * place:.10g}" for place in range(count))
