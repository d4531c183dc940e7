"""The ends of answers, held back until these are recorded."""

import asyncio
from concurrent.futures import Future

import pytest

from engine.messages import FinishReason, RowUpdate
from engine.sampling.params import SamplingParams
from scheduler.request import Request, Times
from server.api.errors import ApiError
from server.api.output.call import read_updates


def ended(row_id: int) -> Request:
    """A request with its last update, of whose record nothing is known yet."""
    request = Request(row_id, (1,), SamplingParams(8), Times(0.0), recorded=Future())
    request.stream.put(RowUpdate(row_id, (5,), finish_reason=FinishReason.STOP))
    return request


async def read_all(*requests: Request) -> list[int]:
    """Rows in the order in which their ends were told."""
    async with read_updates(requests) as updates:
        return [update.row_id async for arrivals in updates for _, update in arrivals]


@pytest.mark.parametrize("count", [1, 2])
async def test_an_answer_ends_once_it_is_recorded(count: int) -> None:
    requests = [ended(number) for number in range(count)]
    reading = asyncio.create_task(read_all(*requests))
    for request in requests:
        for _ in range(5):
            await asyncio.sleep(0)
        assert not reading.done()
        assert request.recorded is not None
        request.recorded.set_result(True)
    assert sorted(await reading) == list(range(count))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("late", [False, True])
async def test_an_unrecorded_answer_ends_with_an_error(count: int, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.api.output.call.RECORDING_TIME", 0.01)
    requests = [ended(number) for number in range(count)]
    if not late:
        assert requests[-1].recorded is not None
        requests[-1].recorded.set_result(False)
    with pytest.raises(ApiError, match="could not be recorded") as caught:
        await read_all(*requests)
    assert (caught.value.status, caught.value.code) == (503, "journal_failed")
