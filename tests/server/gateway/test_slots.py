"""Slots are counted by the calls that had one at once, whatever answers' length."""

from __future__ import annotations

from collections import deque
from itertools import count

import pytest

from server.gateway.slots import InferredSlots

STEP = 0.025


class Play:
    """Calls that all wait from the start, at a backend that serves them by arrival: a token of each a step."""

    def __init__(self, tokens: int, clients: int = 1) -> None:
        self.tokens, self.clients, self.now, self.reading = tokens, clients, 0.0, 0
        self.longer = 0  # steps that every other prompt takes beside
        self.slots = InferredSlots(clock=lambda: self.now)
        self.rows, self.sent, self.running = count(), deque[int](), dict[int, int]()
        self.ends: list[float] = []
        self.limits: list[int] = []

    def go_on(self, truth: int, calls: int, *, stream: bool = True) -> list[int]:
        """The limits at each end."""
        self.limits.clear()
        left = iter(range(calls))
        while len(self.limits) < calls:
            self._send(left, stream)
            self.now += STEP
            while self.sent and len(self.running) < truth:
                row = self.sent.popleft()
                self.running[row] = -self.reading - row % 2 * self.longer
            for row in list(self.running):
                self.now += STEP / 1000  # what happens in a step is told one after another
                self.running[row] += 1
                if self.running[row] == (1 if stream else self.tokens):
                    self.slots.begin(row)
                if self.running[row] == self.tokens:
                    del self.running[row]
                    self.slots.end(row)
                    self.ends.append(self.now)
                    self.limits.append(self.slots.most)
                self._send(left, stream)
        return self.limits

    def _send(self, left: object, stream: bool) -> None:
        while len(self.sent) + len(self.running) < self.slots.most and next(left, None) is not None:  # type: ignore[call-overload]
            self.sent.append(row := next(self.rows))
            self.slots.send(row, f"client {row % self.clients}", streams=stream)


@pytest.mark.parametrize("truth", [1, 2, 4, 7, 32])
def test_the_backends_slots_are_found_and_one_more_is_sent(truth: int) -> None:
    limits = Play(40).go_on(truth, 20 * truth)[2 * truth :]
    assert set(limits) == {truth + 1}


@pytest.mark.parametrize("tokens", [1, 2, 4, 5, 10, 40])
@pytest.mark.parametrize("truth", [1, 4, 16, 64])
@pytest.mark.parametrize("clients", [1, 2, 20])
def test_no_slot_is_left_empty_whatever_the_length(tokens: int, truth: int, clients: int) -> None:
    """Of 16 slots 3 used to be found where answers were of a few tokens, as one always ends before the next begins."""
    play = Play(tokens, clients)
    limits = play.go_on(truth, 100 + 8 * truth)[100:]
    served = (len(play.ends) - 100 - truth) / (play.ends[-1 - truth] - play.ends[100 - 1])
    assert served >= 0.97 * truth / (tokens * STEP * (1 + truth / 1000))
    assert sum(limits) / len(limits) <= truth + 2 + truth / 3


@pytest.mark.parametrize("truth", [1, 4, 32])
def test_where_clients_compete_one_more_is_sent_only_now_and_then(truth: int) -> None:
    """Else one who comes later waits at the backend, behind a call of one who has all its slots."""
    limits = Play(400, clients=2).go_on(truth, 20 * truth + 1000)[2 * truth :]
    assert set(limits) == {truth, truth + 1}
    assert limits.count(truth) > 0.85 * len(limits)


def test_more_slots_are_found_while_clients_compete() -> None:
    play = Play(400, clients=2)
    play.go_on(3, 200)
    assert 5 <= play.go_on(5, 1000)[-1] <= 6


@pytest.mark.parametrize("clients", [1, 2])
def test_prompts_that_take_longer_to_read_are_not_taken_for_calls_that_wait(clients: int) -> None:
    play = Play(1, clients)
    play.go_on(4, 300)
    play.reading = 20
    play.go_on(4, 600)
    assert 300 / (play.ends[-1] - play.ends[-301]) >= 0.95 * 4 / (21 * STEP)


@pytest.mark.parametrize("truth", [1, 4, 16])
@pytest.mark.parametrize("longer", [10, 30, 100])
def test_long_prompts_among_short_ones_are_not_taken_for_calls_that_wait(truth: int, longer: int) -> None:
    """One of 16 slots used to be found."""
    play = Play(1, clients=2)
    play.longer = longer
    limits = play.go_on(truth, 100 + 20 * truth)[100:]
    served = (len(play.ends) - 100 - truth) / (play.ends[-1 - truth] - play.ends[100 - 1])
    assert served >= 0.9 * truth / ((1 + longer / 2) * STEP)
    assert sum(limits) / len(limits) <= truth + 8 + truth / 2


def test_slots_are_not_forgotten_in_a_quiet_spell() -> None:
    """They used to be after 64 answers one at a time, and came back one by one."""
    play = Play(40)
    play.go_on(16, 200)
    for _ in range(100):
        play.go_on(16, 1)
    assert 16 <= play.slots.most <= 17


def test_slots_that_are_gone_are_forgotten_where_calls_wait() -> None:
    play = Play(10)
    play.go_on(16, 200)
    assert 4 <= play.go_on(4, 1000)[-1] <= 10


def test_a_number_that_is_told_goes_before_what_is_seen() -> None:
    slots = InferredSlots(3)
    slots.learn(8)
    assert slots.most == 3
    other = InferredSlots()
    other.learn(8)
    assert other.most == 8


def test_a_backend_that_tells_of_its_queue_is_believed() -> None:
    slots = InferredSlots()
    for row in range(6):
        slots.send(row, streams=True)
    slots.hear(waiting=0, running=6)
    assert slots.most == 12
    slots.hear(waiting=2, running=4)
    assert slots.most == 5
    slots.hear(waiting=0, running=4)
    assert slots.most == 5  # one is on its way


def test_whole_answers_take_slots_as_those_that_stream() -> None:
    """They used to be sent at once, as many as came: another client's calls waited behind them all."""
    play = Play(40)
    play.go_on(4, 80)
    assert set(play.go_on(4, 80, stream=False)) <= {4, 5, 6}


@pytest.mark.parametrize("truth", [1, 4, 16])
def test_slots_are_found_where_all_answers_are_whole(truth: int) -> None:
    assert truth <= Play(40).go_on(truth, 20 * truth, stream=False)[-1] <= truth + 2


def test_an_end_may_be_said_twice_and_a_byte_may_come_late() -> None:
    slots = InferredSlots()
    slots.send(1, streams=True)
    slots.end(1)
    slots.end(1)
    slots.begin(1)
    assert slots.most == 1


def test_a_report_between_steps_tells_of_short_answers_by_what_waits() -> None:
    """Of answers of one token none runs then, so half of vLLM's slots were found."""
    now = 0.0
    slots = InferredSlots(clock=lambda: now)
    slots.send(0, streams=True)
    now += 0.1
    slots.begin(0)
    slots.end(0)
    assert slots.most == 2
    for row in (1, 2):
        slots.send(row, streams=True)
    slots.hear(waiting=1, running=0)
    slots.hear(waiting=0, running=0)  # of a step that began before they were sent
    assert slots.most == 2
    now += 0.2
    slots.hear(waiting=0, running=0)
    assert slots.most == 4
