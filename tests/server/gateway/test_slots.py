"""Slots are counted by the answers that stream together."""

from __future__ import annotations

from collections import deque

import pytest

from server.gateway.slots import Slots


def play(slots: Slots, truth: int, calls: int, clients: int = 1) -> list[int]:
    """The limits at each end of calls that all wait from the start, at a backend that serves `truth` by arrival."""
    waiting, sent, running, limits = deque(range(calls)), deque[int](), deque[int](), []
    while waiting or sent or running:
        while waiting and len(sent) + len(running) < slots.most:
            sent.append(waiting.popleft())
            slots.send(sent[-1], f"client {sent[-1] % clients}", streams=True)
        while sent and len(running) < truth:
            running.append(sent.popleft())
            slots.begin(running[-1])
            while waiting and len(sent) + len(running) < slots.most:  # more are sent as soon as more are known to fit
                sent.append(waiting.popleft())
                slots.send(sent[-1], f"client {sent[-1] % clients}", streams=True)
        slots.end(running.popleft())
        limits.append(slots.most)
    return limits


@pytest.mark.parametrize("truth", [1, 2, 4, 7, 32])
def test_the_backends_slots_are_found_and_one_more_is_sent(truth: int) -> None:
    limits = play(Slots(), truth, 20 * truth)
    assert limits[2 * truth :] == [truth + 1] * len(limits[2 * truth :])


@pytest.mark.parametrize("truth", [1, 4, 32])
def test_where_clients_compete_one_more_is_sent_only_now_and_then(truth: int) -> None:
    """Else one who comes later waits at the backend, behind a call of one who has all its slots."""
    limits = play(Slots(), truth, 20 * truth + 1000, clients=2)[2 * truth :]
    assert set(limits) == {truth, truth + 1}
    assert limits.count(truth) > 0.9 * len(limits)


def test_more_slots_are_found_while_clients_compete() -> None:
    slots = Slots()
    play(slots, 3, 200, clients=2)
    assert 5 <= play(slots, 5, 1000, clients=2)[-1] <= 6


def test_a_number_that_is_told_goes_before_what_is_seen() -> None:
    slots = Slots(3)
    slots.learn(8)
    assert play(slots, 6, 50) == [3] * 50
    other = Slots()
    other.learn(8)
    assert other.most == 8


def test_whole_answers_take_no_slot_of_those_that_stream() -> None:
    slots = Slots()
    for row in range(5):
        slots.send(row, streams=False)
    assert slots.most == 6
    slots.end(3)
    assert slots.most == 5


def test_an_end_may_be_said_twice_and_a_byte_may_come_late() -> None:
    slots = Slots()
    slots.send(1, streams=True)
    slots.end(1)
    slots.end(1)
    slots.begin(1)
    assert slots.most == 1
