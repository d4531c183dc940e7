"""Executors that stand still, and those that only take long."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from engine.messages import BatchShape, ExecutorInfo, StepReport
from server.process.watchdog import Watchdog


@dataclass
class Watched:
    """An executor whose beat the test gives."""

    info: ExecutorInfo
    alive: bool = True
    beat: int = 0


@dataclass
class Held:
    """The rows that executors hold, as a watchdog asks for them."""

    rows: dict[int, int]
    given_up: list[tuple[int, str]] = field(default_factory=list)
    alive: bool = True

    def held_by(self, executor: int) -> int:
        return self.rows[executor]

    def give_up(self, executor: int, error: str) -> None:
        self.given_up.append((executor, error))


def watched(count: int = 1) -> tuple[list[Watched], Held]:
    infos = [ExecutorInfo(index, "cpu", 100, 4, 50) for index in range(count)]
    return [Watched(info) for info in infos], Held(dict.fromkeys(range(count), 1))


def looks(watchdog: Watchdog, count: int) -> None:
    for _ in range(count):
        watchdog.look(1.0)


def turn(executor: int, seconds: float) -> StepReport:
    return StepReport(executor, 1, (), BatchShape(), seconds)


def test_one_that_holds_requests_and_gives_no_sign_is_given_up_once() -> None:
    executors, held = watched(2)
    watchdog = Watchdog(cast(Any, executors), cast(Any, held), 10.0)
    for _ in range(30):
        executors[1].beat += 1
        watchdog.look(1.0)
    assert held.given_up == [(0, "it stands still: no sign of life for 10 s")]
    assert watchdog.responsive()


def test_one_that_has_nothing_to_do_may_be_silent() -> None:
    executors, held = watched()
    held.rows[0] = 0
    watchdog = Watchdog(cast(Any, executors), cast(Any, held), 10.0)
    looks(watchdog, 100)
    held.rows[0] = 1
    looks(watchdog, 9)
    assert held.given_up == []


def test_one_whose_turns_take_long_is_given_the_time_that_they_take() -> None:
    executors, held = watched()
    watchdog = Watchdog(cast(Any, executors), cast(Any, held), 10.0)
    watchdog.receive(turn(0, 20.0))
    looks(watchdog, 95)
    assert held.given_up == []
    looks(watchdog, 10)
    assert [executor for executor, _ in held.given_up] == [0]


def test_a_slow_turn_long_ago_no_longer_counts() -> None:
    executors, held = watched()
    watchdog = Watchdog(cast(Any, executors), cast(Any, held), 10.0)
    watchdog.receive(turn(0, 1000.0))
    for _ in range(1000):
        watchdog.receive(turn(0, 0.1))
    looks(watchdog, 11)
    assert len(held.given_up) == 1


def test_readiness_turns_at_half_of_what_is_allowed_and_back_with_the_next_sign() -> None:
    executors, held = watched()
    watchdog = Watchdog(cast(Any, executors), cast(Any, held), 10.0)
    looks(watchdog, 5)
    assert watchdog.responsive()
    looks(watchdog, 1)
    assert not watchdog.responsive()
    executors[0].beat += 1
    looks(watchdog, 1)
    assert watchdog.responsive()


def test_nobody_is_given_up_where_that_is_switched_off() -> None:
    executors, held = watched()
    watchdog = Watchdog(cast(Any, executors), cast(Any, held), 0.0)
    looks(watchdog, 10_000)
    assert held.given_up == [] and watchdog.responsive()


def test_a_process_that_was_stopped_for_an_hour_blames_nobody() -> None:
    """Silence is counted in looks, so an hour between two looks is one interval."""
    executors, held = watched()
    watchdog = Watchdog(cast(Any, executors), cast(Any, held), 10.0)
    looks(watchdog, 8)
    executors[0].beat += 1
    looks(watchdog, 1)
    assert held.given_up == []


def test_where_no_device_proves_itself_all_are_given_up_and_not_before() -> None:
    executors, held = watched(2)
    held.rows = {0: 0, 1: 0}
    watchdog = Watchdog(cast(Any, executors), cast(Any, held), 0.0)
    held.alive = False
    looks(watchdog, 14)
    held.alive = True
    looks(watchdog, 1)
    held.alive = False
    looks(watchdog, 14)
    assert not held.given_up
    looks(watchdog, 5)
    assert [executor for executor, _ in held.given_up] == [0, 1]
    assert "has not proved itself for 15 s" in held.given_up[0][1]
