"""The open loop: what is sent when, whatever becomes of it. Requests are played to a function, not a server."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from loadgen.client.request import CHAT, Clock, PreparedRequest, RequestOutcome
from loadgen.load import BUSY_CPU, BUSY_LAG, measure_client, play
from tests.loadgen.bench.outcomes import DONE

AT_ONCE = [0.0] * 20


def due(times: Sequence[float]) -> list[PreparedRequest]:
    """A request at each of these times."""
    return [PreparedRequest(index, CHAT, b"", time) for index, time in enumerate(times)]


def show_nothing(ended: int, note: str) -> None:
    """Nobody looks."""


def outcome(request: PreparedRequest, sent: float, end: float) -> RequestOutcome:
    return replace(DONE, request=request, sent=sent, token_times=(end,), end=end)


async def test_no_request_waits_for_another() -> None:
    """Nothing is answered before the last request has gone out: a closed loop would stand still."""
    shown: list[tuple[int, str]] = []
    all_out = asyncio.Event()

    async def send(request: PreparedRequest, clock: Clock) -> RequestOutcome:
        sent = clock()
        if shown[-1] == (0, "20 running"):
            all_out.set()
        await all_out.wait()
        return outcome(request, sent, clock())

    run = await play(due([0.001 * index for index in range(20)]), send, lambda ended, note: shown.append((ended, note)))
    assert [one.request.index for one in run.outcomes] == list(range(20))
    assert (shown[-1], run.interrupted) == ((20, "0 running"), False)


async def test_requests_go_out_at_their_time_and_never_before() -> None:
    times = [0.002 * (index + 1) for index in range(20)]

    async def send(request: PreparedRequest, clock: Clock) -> RequestOutcome:
        return outcome(request, clock(), clock())

    run = await play(due(times), send, show_nothing)
    assert [one.scheduled for one in run.outcomes] == times
    assert all(one.sent >= one.scheduled for one in run.outcomes)
    assert run.duration >= times[-1]


@pytest.mark.parametrize("limit", [1, 3])
async def test_a_limit_holds_requests_back_and_their_schedule_stays(limit: int) -> None:
    running = peak = 0

    async def send(request: PreparedRequest, clock: Clock) -> RequestOutcome:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        sent = clock()
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        return outcome(request, sent, clock())

    run = await play(due(AT_ONCE), send, show_nothing, limit)
    assert peak == limit
    assert [one.scheduled for one in run.outcomes] == AT_ONCE
    sent = [one.sent for one in run.outcomes]
    assert sent == sorted(sent)  # first come, first served


async def test_cancelling_keeps_what_has_ended_and_stops_the_rest() -> None:
    left: list[int] = []

    async def send(request: PreparedRequest, clock: Clock) -> RequestOutcome:
        if request.index % 2:
            try:
                await asyncio.Event().wait()
            finally:
                left.append(request.index)
        return outcome(request, clock(), clock())

    ended: list[int] = []
    later = due([*AT_ONCE[:10], *[3600.0] * 10])
    task = asyncio.create_task(play(later, send, lambda done, note: ended.append(done)))
    while 5 not in ended:
        await asyncio.sleep(0)
    task.cancel()
    run = await task
    assert [one.request.index for one in run.outcomes] == [0, 2, 4, 6, 8]
    assert (run.planned, run.interrupted, sorted(left)) == (20, True, [1, 3, 5, 7, 9])


async def test_a_mistake_in_sending_is_not_swallowed() -> None:
    async def send(request: PreparedRequest, clock: Clock) -> RequestOutcome:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        await play(due(AT_ONCE), send, show_nothing)
    assert isinstance(caught.value.exceptions[0], ZeroDivisionError)


async def test_a_loop_that_is_held_up_is_noticed() -> None:
    async def send(request: PreparedRequest, clock: Clock) -> RequestOutcome:
        await asyncio.sleep(0)  # the watch begins
        until = clock() + 0.1
        while clock() < until:
            pass
        await asyncio.sleep(0.001)
        return outcome(request, 0.0, clock())

    load = (await play(due([0.0]), send, show_nothing)).client
    assert float(str(load["client_loop_lag_max_ms"])) >= 70 and float(str(load["client_cpu_percent"])) > 0


def test_a_client_that_kept_up_has_no_warning() -> None:
    calm = [0.001] * 200 + [0.1]
    assert measure_client(0.5, calm) == {
        "client_cpu_percent": 50.0,
        "client_loop_lag_mean_ms": pytest.approx(1.49, abs=0.01),
        "client_loop_lag_p99_ms": 1.0,
        "client_loop_lag_max_ms": 100.0,
        "client_warning": None,
    }
    assert "of a core" in str(measure_client(BUSY_CPU, calm)["client_warning"])
    assert "20 ms" in str(measure_client(0.5, [BUSY_LAG])["client_warning"])
