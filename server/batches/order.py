"""The lines of a batch in the order in which they are asked, the greatest work first, while it is still estimated.

With equal slots the longest first ends soonest (Graham 1969, longest processing time first), since no long one is left
to run alone. Estimates of a large input take minutes, so the first lines are asked before the last ones are known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from heapq import heappop, heappush

from server.batches.expected_end import ExpectedEnd
from server.batches.lines import Place

AHEAD = 256
"""Lines whose work is known before the first is asked."""


class LongestFirst:
    """Lines whose work is known. Event loop only."""

    def __init__(self, end: ExpectedEnd, name_of: Callable[[Place], str]) -> None:
        """`end` is told the work of each line, by its request's name."""
        self._end = end
        self._name_of = name_of
        self._known: list[tuple[float, int, Place]] = []
        self._more = asyncio.Event()

    async def estimate(self, places: Sequence[Place], work_of: Callable[[Place], Awaitable[float]]) -> None:
        """Find out the work of all lines, one after another."""
        for number, place in enumerate(places):
            work = await work_of(place)
            self._end.expect(self._name_of(place), work)
            heappush(self._known, (-work, number, place))
            self._more.set()
        self._end.all_known = True
        self._more.set()

    async def ready(self) -> None:
        """Wait until there is a line to ask."""
        while len(self._known) < AHEAD and not self._end.all_known:
            self._more.clear()
            await self._more.wait()

    def take(self) -> Place:
        """The next line, once there is one."""
        return heappop(self._known)[-1]
