"""A mapping and a sorted list that forget."""

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T", bound=Any)


class Recent(OrderedDict[K, V]):
    """Keeps the `most` entries that were set last."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)


class RecentSorted(Generic[T]):
    """Keeps the `most` values that were added last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._latest = deque[T]()
        self.sorted: list[T] = []

    def add(self, value: T) -> None:
        self._latest.append(value)
        insort(self.sorted, value)
        if len(self._latest) > self._most:
            del self.sorted[bisect_left(self.sorted, self._latest.popleft())]

    def keep(self, wanted: Callable[[T], bool]) -> None:
        self._latest = deque(filter(wanted, self._latest))
        self.sorted = [*filter(wanted, self.sorted)]
