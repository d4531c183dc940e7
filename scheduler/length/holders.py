"""What is learned for each holder of an API key, within one bound for all."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar


class Rows(Protocol):
    """Rows, oldest first."""

    rows: deque[Any]


T = TypeVar("T", bound=Rows)


def holder_of(scope: str) -> str:
    """Holder of a length scope HOLDER or HOLDER:SALT."""
    return scope.partition(":")[0]


class HolderStore(Generic[T]):
    """Parts by holder and name, at most `parts` a holder, least recently used dropped first. Beyond `most` rows,
    `overhead` a part included, the holder with the most rows loses a part, or half its only one.
    """

    def __init__(self, make: Callable[[], T], most: int, parts: int, overhead: int = 1) -> None:
        self._make, self._most, self._parts, self._overhead = make, most, parts, overhead
        self._of: dict[str, OrderedDict[object, T]] = {}
        self._sizes: Counter[str] = Counter()

    def get(self, holder: str, name: object) -> T | None:
        parts = self._of.get(holder)
        return None if parts is None else parts.get(name)

    def all(self) -> list[T]:
        return [part for parts in self._of.values() for part in parts.values()]

    def add(self, holder: str, name: object, row: object) -> T:
        parts = self._of.setdefault(holder, OrderedDict())
        if (part := parts.get(name)) is None:
            part = parts[name] = self._make()
            self._sizes[holder] += self._overhead
        parts.move_to_end(name)
        before = len(part.rows)
        part.rows.append(row)
        self._sizes[holder] += len(part.rows) - before
        if len(parts) > self._parts:
            self._shrink(holder)
        while self._sizes.total() > self._most:
            self._shrink(max(self._sizes, key=self._sizes.__getitem__))
        return part

    def _shrink(self, holder: str) -> None:
        parts = self._of[holder]
        oldest = next(iter(parts))
        rows = parts[oldest].rows
        if len(parts) == 1 and len(rows) > 1:
            for _ in range(half := len(rows) // 2):
                rows.popleft()
            self._sizes[holder] -= half
            return
        del parts[oldest]
        self._sizes[holder] -= len(rows) + self._overhead
        if not parts:
            del self._of[holder], self._sizes[holder]
