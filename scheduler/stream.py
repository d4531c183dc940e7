"""Streams of answers; the backlog of a slow reader is joined, so the writer never waits."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from engine.messages import RowUpdate

SLICE = 0.005  # seconds of an event loop iteration for sending, and again for tasks that it wakes
AT_ONCE = 8  # tasks woken in one iteration at most


class Wakeups:
    """Wakes readers in order, some in each iteration of the event loop: a step brings tokens to a thousand rows."""

    def __init__(self, seconds: float = SLICE) -> None:
        """`seconds` of each iteration for woken tasks."""
        self._seconds = seconds
        self._due: deque[Callable[[], asyncio.Future[None] | None]] = deque()
        self._tasks: deque[asyncio.Future[None]] = deque()
        self._many = AT_ONCE  # tasks that take so long, by the last ones
        self._begun = 0.0
        self._awake = False
        self.made = 0.0  # when the tokens now put were made (time.monotonic)

    def add(self, wake: Callable[[], asyncio.Future[None] | None]) -> None:
        """Returns what a task to be woken waits for."""
        self._schedule()
        self._due.append(wake)

    async def turn(self) -> None:
        self._schedule()
        task = asyncio.get_running_loop().create_future()
        self._tasks.append(task)
        await task

    def _schedule(self) -> None:
        if not self._awake:
            self._awake = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + SLICE
        while self._due and loop.time() < until:
            if (task := self._due.popleft()()) is not None:
                self._tasks.append(task)
        woken = min(self._many, len(self._tasks))
        loop.call_soon(self._begin)
        for task in [self._tasks.popleft() for _ in range(woken)]:
            if not task.done():
                task.set_result(None)
        loop.call_soon(self._end, woken)  # the loop runs them in this order, and those woken between

    def _begin(self) -> None:
        self._begun = asyncio.get_running_loop().time()

    def _end(self, woken: int) -> None:
        loop = asyncio.get_running_loop()
        if woken:
            took = max(loop.time() - self._begun, self._seconds / 64)
            self._many = max(1, min(AT_ONCE, 2 * self._many, int(woken * self._seconds / took)))
        self._awake = bool(self._due or self._tasks)
        if self._awake:
            loop.call_soon(self._wake)


# takes an update in place of the waiting reader, without waking it; False leaves it to the reader
Shortcut = Callable[[RowUpdate], bool]


class TokenStream:
    """One writer, one reader, one event loop; iteration ends after the finish reason."""

    def __init__(self, wakeups: Wakeups | None = None) -> None:
        """`wakeups` are shared by readers that take turns."""
        self._wakeups = wakeups or Wakeups()
        self._backlog: list[RowUpdate] = []
        self._reader: asyncio.Future[None] | None = None
        self.shortcut: Shortcut | None = None
        self.made = 0.0  # when the oldest token last taken was made
        self._oldest = 0.0

    def put(self, update: RowUpdate) -> None:
        if not self._backlog:
            self._oldest = self._wakeups.made
        self._backlog.append(update)
        if len(self._backlog) == 1 and self._reader is not None:
            self._wakeups.add(self._hand_on)

    def _hand_on(self) -> asyncio.Future[None] | None:
        if self._reader is None or self._reader.done():  # busy or cancelled
            return None
        self.made = self._oldest
        try:
            update = RowUpdate.join(self._backlog)
            taken = self.shortcut is not None and self.shortcut(update)
        except Exception:  # the reader meets it too
            taken = False
        if taken:
            self._backlog.clear()
        return None if taken else self._reader

    async def __aiter__(self) -> AsyncIterator[RowUpdate]:
        while True:
            if not self._backlog:
                self._reader = asyncio.get_running_loop().create_future()
                await self._reader
            update = RowUpdate.join(self._backlog)
            self._backlog.clear()
            self.made = self._oldest
            yield update
            if update.finish_reason is not None:
                return
