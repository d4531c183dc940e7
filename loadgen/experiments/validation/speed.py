"""The slowdown of a machine against its profile, measured by the iterations of a run.

Not from how long executors were at work altogether: how full batches are is an accident of the run as well, and would
seem to be a slow machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.messages import Report, StepReport
from scheduler.serving_time.bilinear import Bilinear


@dataclass(slots=True)
class Speedometer:
    """Hears what executors report, and holds their iterations against the profile."""

    profile: Bilinear
    _measured: float = 0.0
    _profiled: float = 0.0

    @property
    def slowdown(self) -> float:
        """Seconds of all iterations, over what the profile says; 1 where there were none."""
        return self._measured / self._profiled if self._profiled else 1.0

    def hear(self, report: Report) -> None:
        """Count an iteration; turns that did more are passed over, and those after which no batch is left."""
        if not isinstance(report, StepReport) or report.tally.prompt or not report.shape.rows:
            return
        rows = report.tally.generated + report.tally.invalid  # each makes one token, valid or not
        if rows and not (report.extracted or report.handed_back):
            columns = report.shape.end - report.shape.start
            self._measured += report.seconds
            self._profiled += float(self.profile.iteration(float(rows), float(columns)))
