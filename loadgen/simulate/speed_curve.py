"""A machine's speed over time: how much work it can have done by each moment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.serving_time.bilinear import FloatArray

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

    @classmethod
    def of_speeds(cls, begins: FloatArray, speeds: FloatArray, after: float, usual: float) -> SpeedCurve:
        """The curve of stretches (stretches,) that begin at these moments, from 0, and of seconds of work a second in
        each; from the moment `after` on the speed is `usual`."""
        moments = np.array([*begins, after, after + FOR_EVER])
        return cls(moments, np.concatenate([[0.0], np.cumsum(np.diff(moments) * np.append(speeds, usual))]))

    def work_by(self, moments: FloatArray) -> FloatArray:
        """The work done by each of some moments (n,), in seconds by the prices."""
        return np.interp(moments, self.moments, self.work)

    def pace(self, now: float, seconds: float) -> float:
        """The Pace of a machine that is as fast at each moment as this one was."""
        done = float(np.interp(now, self.moments, self.work))
        return float(np.interp(done + seconds, self.work, self.moments)) - now
