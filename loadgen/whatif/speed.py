"""The speed that a machine had at each moment while it served, told by how long its requests took.

One factor for a whole run is not enough: a machine that is slow for a minute makes a queue, and one that is as slow on
the average but even makes none. While a request is served, from s to e, the machine does as much work, in seconds by
its prices, as a simulated one does meanwhile, and that hardly depends on the speed. So with W of a simulation, the
speeds v of some stretches of time follow from

    ∫ v from s to e  =  W        for every request,

and a simulation at these speeds tells a better W. The equations are solved by Richardson's and Lucy's iteration, which
keeps speeds positive: each v is multiplied by the mean of W / ∫ v of the requests served then, weighted by how long.
A faster machine runs fewer rows at once, each for less work, so that, once speeds are about right, the next simulation
is at the geometric mean of those before and after: without it the two take turns in being far off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, inf

import numpy as np

from loadgen.simulate.simulation import Served
from loadgen.simulate.speed_curve import SpeedCurve

PER_STRETCH = 5
"""Requests that begin in a stretch of even speed, at least."""

MOST_STRETCHES = 500
"""Stretches of a run, at most: memory is taken for each request in each of them."""

ROUNDS = 11
"""Simulations."""

COARSE = 2
"""Simulations whose speeds are taken as they come: of a machine without a queue, and of one with the first such."""

UPDATES = 5
"""Steps of the iteration after each."""

LEAST = 1e-9
"""Seconds that any request is served for."""


def find_speed(recorded: Sequence[Served], play: Callable[[SpeedCurve], Sequence[Served]]) -> tuple[SpeedCurve, float]:
    """The curve, of those tried, with which simulated requests end nearest to the recorded ones; and the seconds for
    which requests were served, over the work that was done meanwhile.

    `play` simulates the same requests, in the same order, on a machine whose prices are those of the curve's work.
    """
    begin, end = np.array([(one.started, max(one.end, one.started + LEAST)) for one in recorded]).T
    each = max(PER_STRETCH, ceil(len(begin) / MOST_STRETCHES))
    begins = np.array([0.0, *np.unique(np.sort(begin)[each : -each // 2 : each])])
    last = float(end.max())
    ends = np.append(begins[1:], last)
    served = np.clip(np.minimum(end[:, None], ends) - np.maximum(begin[:, None], begins), 0.0, None)
    together = np.maximum(served.sum(axis=0), LEAST)  # (stretches,)
    speeds, usual = np.ones(len(begins)), 1.0
    found, least = (SpeedCurve.of_speeds(begins, speeds, last, usual), usual), inf
    for number in range(ROUNDS):
        curve = SpeedCurve.of_speeds(begins, speeds, last, usual)
        done = np.array([(one.started, one.end) for one in play(curve)])
        if (missed := float(np.abs(done[:, 1] - end).mean())) < least:
            found, least = (curve, 1 / usual), missed
        work = curve.work_by(done[:, 1]) - curve.work_by(done[:, 0])
        usual = float(work.sum() / (end - begin).sum())
        better = speeds
        for _ in range(UPDATES):
            factors = served.T @ (work / (served @ better)) / together
            better = np.where(factors > 0, better * factors, better)
        speeds = better if number < COARSE else np.sqrt(speeds * better)
    return found
