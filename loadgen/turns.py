"""The loop of every comparison: contenders take turns, and what ended before Ctrl-C counts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def take_turns(contenders: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """(round from 0, contender); each round begins with the next contender, so that drift meets all alike."""
    for number in range(rounds):
        start = number % len(contenders)
        yield from ((number, one) for one in (*contenders[start:], *contenders[:start]))


def collect(results: Iterable[T], keep: Callable[[list[T]], object] = len) -> tuple[list[T], bool]:
    """Results until Ctrl-C, and whether all came; `keep` is called with those so far after each."""
    found: list[T] = []
    try:
        for one in results:
            found.append(one)
            keep(found)
    except KeyboardInterrupt:
        return found, False
    return found, True
