"""Slots are counted by the calls that had one at once, whatever answers' length."""

from collections import deque
from itertools import count
from statistics import fmean

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

    def rate(self, truth: int, calls: int) -> tuple[float, float]:
        """Answers a second, and the mean limit, of so many calls a slot behind the first hundred."""
        limits = self.go_on(truth, 100 + calls * truth)[100:]
        served = (len(self.ends) - 100 - truth) / (self.ends[-1 - truth] - self.ends[100 - 1])
        return served, sum(limits) / len(limits)

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
    served, sent = Play(tokens, clients).rate(truth, 8)
    assert served >= 0.97 * truth / (tokens * STEP * (1 + truth / 1000))
    assert sent <= truth + 2 + truth / 3


@pytest.mark.parametrize("truth", [1, 4, 32])
def test_where_clients_compete_one_more_is_sent_only_now_and_then(truth: int) -> None:
    """Else one who comes later waits at the backend, behind a call of one who has all its slots."""
    limits = Play(400, clients=2).go_on(truth, 20 * truth + 1000)[2 * truth :]
    assert set(limits) == {truth, truth + 1}
    assert limits.count(truth) > 0.85 * len(limits)


@pytest.mark.parametrize(
    ("play", "before", "truth", "most"), [(Play(400, clients=2), 3, 5, 6), (Play(10), 16, 4, 10)], ids=["more", "fewer"]
)
def test_slots_are_found_while_clients_compete_and_forgotten(play: Play, before: int, truth: int, most: int) -> None:
    play.go_on(before, 200)
    assert truth <= play.go_on(truth, 1000)[-1] <= most


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
    served, sent = play.rate(truth, 20)
    assert served >= 0.9 * truth / ((1 + longer / 2) * STEP)
    assert sent <= truth + 8 + truth / 2


def test_slots_are_not_forgotten_in_a_quiet_spell() -> None:
    """They used to be after 64 answers one at a time, and came back one by one."""
    play = Play(40)
    play.go_on(16, 200)
    for _ in range(100):
        play.go_on(16, 1)
    assert 16 <= play.slots.most <= 17


def test_a_number_that_is_told_goes_before_what_is_seen_and_a_backend_that_tells_of_its_queue_is_believed() -> None:
    told, slots = InferredSlots(3), InferredSlots()
    told.learn(8)
    slots.learn(8)
    assert (told.most, slots.most) == (3, 8)
    slots = InferredSlots()
    for row in range(6):
        slots.send(row, streams=True)
    slots.hear(waiting=0, running=6)
    assert slots.most == 12
    slots.hear(waiting=2, running=4)
    assert slots.most == 5
    slots.hear(waiting=0, running=4)
    assert slots.most == 5  # one is on its way


@pytest.mark.parametrize("truth", [1, 4, 16])
def test_slots_are_found_where_all_answers_are_whole_and_taken_as_by_those_that_stream(truth: int) -> None:
    """They used to be sent at once, as many as came: another client's calls waited behind them all."""
    assert truth <= Play(40).go_on(truth, 20 * truth, stream=False)[-1] <= truth + 2
    play = Play(40)
    play.go_on(truth, 20 * truth)
    assert set(play.go_on(truth, 20 * truth, stream=False)) <= {truth, truth + 1, truth + 2}


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


@pytest.mark.parametrize("truth", [1, 4])
def test_calls_that_are_slower_together_have_slots_unless_the_backend_says_that_some_wait(truth: int) -> None:
    """One of vLLM's four was found in every second run: two short answers on two cores take twice as long as one."""
    now, row = 0.0, 0
    slots = InferredSlots(clock=lambda: now)
    there, limits = list[int](), list[int]()
    for turn in range(400):
        while len(there) < slots.most:
            there.append(row)
            slots.send(row, streams=True)
            row += 1
        if turn % 10 == 0:
            slots.hear(waiting=max(0, len(there) - truth), running=0)
        now += 0.05
        slots.begin(there[0])
        slots.end(there.pop(0))
        limits.append(slots.most)
    assert truth <= fmean(limits[100:]) <= truth + 2
