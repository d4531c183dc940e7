"""Executors that stand still, and those that only take long."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.messages import BatchShape, ExecutorInfo, StepReport
from server.process.watchdog import Watchdog


@dataclass
class Watched:
    """An executor whose beat the test gives."""

    info: ExecutorInfo
    alive: bool = True
    beat: int = 0


@dataclass
class Books:
    """What executors hold."""

    held: dict[int, int]
    given_up: list[tuple[int, str]] = field(default_factory=list)

    def held_by(self, executor: int) -> int:
        return self.held[executor]

    def give_up(self, executor: int, error: str) -> None:
        self.given_up.append((executor, error))


def watched(count: int = 1) -> tuple[list[Watched], Books]:
    infos = [ExecutorInfo(index, "cpu", 100, 4, 50) for index in range(count)]
    return [Watched(info) for info in infos], Books(dict.fromkeys(range(count), 1))


def looks(vigil: Watchdog, count: int) -> None:
    for _ in range(count):
        vigil.look(1.0)


def turn(executor: int, seconds: float) -> StepReport:
    return StepReport(executor, 1, (), BatchShape(), seconds)


def test_one_that_holds_requests_and_gives_no_sign_is_given_up_once() -> None:
    executors, books = watched(2)
    vigil = Watchdog(executors, books, 10.0)
    for _ in range(30):
        executors[1].beat += 1
        vigil.look(1.0)
    assert books.given_up == [(0, "it stands still: no sign of life for 10 s")]
    assert vigil.responsive()


def test_one_that_has_nothing_to_do_may_be_silent() -> None:
    executors, books = watched()
    books.held[0] = 0
    vigil = Watchdog(executors, books, 10.0)
    looks(vigil, 100)
    books.held[0] = 1
    looks(vigil, 9)
    assert books.given_up == []


def test_one_whose_turns_take_long_is_given_the_time_that_they_take() -> None:
    executors, books = watched()
    vigil = Watchdog(executors, books, 10.0)
    vigil.receive(turn(0, 20.0))
    looks(vigil, 95)
    assert books.given_up == []
    looks(vigil, 10)
    assert [executor for executor, _ in books.given_up] == [0]


def test_a_slow_turn_long_ago_no_longer_counts() -> None:
    executors, books = watched()
    vigil = Watchdog(executors, books, 10.0)
    vigil.receive(turn(0, 1000.0))
    for _ in range(1000):
        vigil.receive(turn(0, 0.1))
    looks(vigil, 11)
    assert len(books.given_up) == 1


def test_readiness_turns_at_half_of_what_is_allowed_and_back_with_the_next_sign() -> None:
    executors, books = watched()
    vigil = Watchdog(executors, books, 10.0)
    looks(vigil, 5)
    assert vigil.responsive()
    looks(vigil, 1)
    assert not vigil.responsive() and vigil.silence(0) == 5.0
    executors[0].beat += 1
    looks(vigil, 1)
    assert vigil.responsive() and vigil.silence(0) == 0.0


def test_nobody_is_given_up_where_that_is_switched_off() -> None:
    executors, books = watched()
    vigil = Watchdog(executors, books, 0.0)
    looks(vigil, 10_000)
    assert books.given_up == [] and vigil.responsive()


def test_a_process_that_was_stopped_for_an_hour_blames_nobody() -> None:
    """What counts is how often it looked, so an hour between two looks is one interval."""
    executors, books = watched()
    vigil = Watchdog(executors, books, 10.0)
    looks(vigil, 8)
    executors[0].beat += 1
    looks(vigil, 1)
    assert books.given_up == []
