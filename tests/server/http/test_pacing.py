"""Calls that are refused, one after another as fast as can be: neighbours that run get on with their answers."""

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from server.http import service
from server.http.service import BURST, INTERVAL, LONGEST, SENDERS, RefusalLimiter
from tests.server.live import Live, chat_body

REFUSED = chat_body(max_tokens=-1)


@given(st.lists(st.floats(0, 0.1), min_size=1, max_size=200))
def test_refusals_come_at_a_constant_rate_with_bursts(pauses: list[float]) -> None:
    """A sender that waits for each refusal before it sends the next."""
    pace, now, ends = RefusalLimiter(), 0.0, list[float]()
    for pause in pauses:
        now += pause
        now += pace.wait("one", now)
        ends.append(now)
        assert pace.wait(f"other {now}", now) == 0
    for first in range(len(ends)):
        for last in range(first, len(ends)):
            assert last - first <= BURST + (ends[last] - ends[first]) / INTERVAL + 1e-6


def test_of_refusals_at_the_same_time_none_waits_long() -> None:
    pace = RefusalLimiter()
    waits = [pace.wait("one", 5.0) for _ in range(1000)]
    assert waits[:BURST] == [0.0] * BURST and max(waits) == LONGEST
    assert all(one <= other for one, other in pairwise(waits))
    assert pace.wait("one", 5.0 + 2 * LONGEST) == 0, "who waits has as much again"


def test_senders_that_were_refused_long_ago_are_forgotten() -> None:
    pace = RefusalLimiter()
    for number in range(2 * SENDERS):
        pace.wait(str(number), 0.0)
    assert len(pace._due) == SENDERS


async def test_refusals_wait_while_rows_run(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four clients of refused calls took a core, and made each of their neighbours' tokens wait for 85 ms."""
    waits = list[float]()

    async def note(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(service, "sleep", note)

    async def statuses() -> set[int]:
        return {(await live.post("/v1/chat/completions", REFUSED))[0] for _ in range(3 * BURST)}

    assert await statuses() == {400} and not waits, "nothing runs that they would disturb"
    live.dispatcher.pause = 1
    body = chat_body(stream=True)
    async with live.session.post(f"{live.url}/v1/chat/completions", json=body) as running:
        await running.content.readuntil(b"\n\n")
        assert live.dispatcher.table.requests_running
        assert await statuses() == {400} and len(waits) == 3 * BURST and waits[-1] > 0
        assert (await live.post("/nowhere", {}))[0] == 404 and len(waits) == 3 * BURST + 1
        live.dispatcher.release()
        await running.read()
