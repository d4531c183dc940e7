"""The speed of a run, told by its own steps: what iterations and prefills took, and how that changed while it ran.

Not from how long executors were at work altogether: how full batches are is an accident of the run as well, and would
seem to be a slow machine. A step lasts from the report before it to its own, so that what is done between two steps
counts: rows that join, copies, reports.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from engine.messages import Report, StepReport, Tally
from scheduler.serving_time.bilinear import Bilinear, FloatArray, fit_surfaces
from scheduler.serving_time.machine import Phase, Step, StepTimings

FOR_EVER = 1e9
"""Seconds for which a machine keeps its last speed."""


@dataclass(frozen=True, slots=True)
class SpeedCurve:
    """Moments, and the work that a device which is never idle has done by then. Both ascend, from 0; between them the
    speed is even.
    """

    moments: FloatArray
    """(moments,), in seconds after the run's begin."""
    work: FloatArray
    """(moments,), in seconds by the prices."""

    def pace(self, now: float, seconds: float) -> float:
        """The Pace of a machine that is as fast at each moment as this one was."""
        done = float(np.interp(now, self.moments, self.work))
        return float(np.interp(done + seconds, self.work, self.moments)) - now


PHASES: tuple[Phase, Phase] = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class RunSpeed:
    """The prices of a run, and how its speed changed about them."""

    prices: Bilinear
    """Fitted to the run's steps; the sums of all prefills and of all iterations are what they took."""
    slowdown: float
    """Seconds of all steps, over what the profile says."""
    curve: SpeedCurve


@dataclass(slots=True)
class Speedometer:
    """Hears what executors report, and holds their steps against the profile."""

    profile: Bilinear
    _readers: dict[int, StepTimings] = field(default_factory=dict)
    _busy_since: dict[int, float] = field(default_factory=dict)
    """When each executor that still had rows reported last."""
    _steps: list[tuple[int, float, Step]] = field(default_factory=list)
    """Executors, and when these ended which steps."""

    def hear(self, report: Report, now: float) -> None:
        """Note a step that ended at `now`, in seconds after the run's begin."""
        if not isinstance(report, StepReport):
            return
        since = self._busy_since.get(report.executor, now - report.seconds)
        lasted = replace(report, seconds=max(report.seconds, now - since))
        reader = self._readers.setdefault(report.executor, StepTimings())
        self._steps += [(report.executor, now, step) for step in reader.read(lasted, self.profile)]
        if not (report.shape.rows or report.shape.staged):
            self._busy_since.pop(report.executor, None)
        elif report.tally != Tally():  # else rows were moved only, and that belongs to the next step
            self._busy_since[report.executor] = now

    def read(self) -> RunSpeed:
        """The speed of all that was heard; the profile's where it was nothing."""
        if {step.phase for _, _, step in self._steps} != set(PHASES):
            even = np.array([0.0, FOR_EVER])
            return RunSpeed(self.profile, 1.0, SpeedCurve(even, even))
        prices = self._fit()
        measured = sum(_seconds(step) for _, _, step in self._steps)
        profiled = sum(_price(self.profile, step) for _, _, step in self._steps)
        return RunSpeed(prices, measured / profiled, self._follow(prices))

    def _follow(self, prices: Bilinear) -> SpeedCurve:
        """The curve by the steps of the first executor: all share one machine."""
        moments, work = [0.0], [0.0]
        for executor, now, step in self._steps:
            if executor == self._steps[0][0]:
                began = max(moments[-1], now - _seconds(step))
                idle = began - moments[-1]
                moments += [began, max(began, now)]
                work += [work[-1] + idle, work[-1] + idle + _price(prices, step)]
        return SpeedCurve(np.array([*moments, moments[-1] + FOR_EVER]), np.array([*work, work[-1] + FOR_EVER]))

    def _fit(self) -> Bilinear:
        """The model of all steps, whose sums over those of a phase are what these took."""
        prefills, decodes = ([step for _, _, step in self._steps if step.phase == phase] for phase in PHASES)
        found = fit_surfaces([step.timing for step in prefills], [step.timing for step in decodes])
        read, decoded = (
            found.slowed(sum(map(_seconds, steps)) / sum(_price(found, step) for step in steps))
            for steps in (prefills, decodes)
        )
        iterations = {name: getattr(decoded, name) for name in ("d1", "d2", "d3", "d4")}
        return replace(read, **iterations, c1=self.profile.c1, c0=self.profile.c0)


def _seconds(step: Step) -> float:
    """Seconds that a step took; a step of the decode phase is one iteration."""
    return step.timing.seconds


def _price(prices: Bilinear, step: Step) -> float:
    price = prices.prefill if step.phase == "prefill" else prices.iteration
    return price(float(step.timing.rows), float(step.timing.length))
