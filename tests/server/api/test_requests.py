"""GET /v1/requests, GET /v1/requests/{id}, POST /v1/requests/{id}/cancel, over loopback."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any
from unittest.mock import Mock

import orjson
import pytest

from scheduler.clock import background
from server.api import register as requests
from server.api.register import Register
from server.api.request_status import RequestStatus
from tests.server.fakes import ANSWER, endless
from tests.server.live import CHAT, COMPLETIONS, RESPONSES, Live, bearer, chat_body, live_server, parse_events, text_of

ALL = "/v1/requests"


async def get(live: Live, path: str, key: str = "") -> Any:
    """What is told, which may be an error."""
    return (await live.get(path, **(bearer(key) if key else {}))).json


async def status_of(live: Live, name: str, key: str = "") -> int:
    return (await live.get(f"{ALL}/{name}", **(bearer(key) if key else {}))).status


async def cancel(live: Live, name: str) -> Any:
    """The state of a call that is cancelled."""
    return (await live.obtain(f"{ALL}/{name}/cancel", None))["state"]


async def test_a_request_that_waits_tells_its_place_and_how_long_it_is_expected_to_take(live: Live) -> None:
    live.dispatcher.crowd(waiting=2)
    live.dispatcher.waits.wait = lambda request: 1.25  # type: ignore[method-assign]
    task = await live.begin(CHAT, chat_body(n=2, max_tokens=30), 2, x_request_id="mine")
    for request in live.dispatcher.submitted:
        assert (request.state, request.times.started) == ("waiting", None)
    status = await get(live, f"{ALL}/mine")
    assert status["id"].startswith("chatcmpl-")
    told = {"state": "waiting", "place": 3, "expected_wait_s": 1.25, "endpoint": CHAT, "model": "fake", "stream": False}
    told |= {"max_tokens": 60, "generated_tokens": 0, "request_id": "mine"}
    assert {name: status[name] for name in told} == told
    assert status["metrics"]["queue_time_ms"] is None
    assert [choice["state"] for choice in status["choices"]] == ["waiting", "waiting"]
    live.dispatcher.release()
    assert (await task)[0] == 200


async def test_a_request_that_runs_tells_its_tokens_and_one_that_has_ended_its_times(live: Live) -> None:
    live.dispatcher.pause = 2
    async with live.streaming(COMPLETIONS, {"prompt": "Hi", "max_tokens": 5}) as content:
        for _ in range(2):
            await content.readuntil(b"\n\n")
        (running,) = (await get(live, ALL))["data"]
        live.dispatcher.release()
        await content.read()
    told = {"state": "running", "place": None, "prompt_tokens": 2, "generated_tokens": 2, "stream": True}
    assert {name: running[name] for name in told} == told
    ended = await get(live, f"{ALL}/{running['id']}")
    assert (ended["state"], ended["generated_tokens"]) == ("finished", 5)
    assert ended["metrics"]["generation_time_ms"] >= 0
    assert (await get(live, f"{ALL}/{running['id']}"))["age_s"] == ended["age_s"]


@pytest.mark.parametrize("by", ["id", "request_id"])
@pytest.mark.parametrize("pause", [0, 2], ids=["while waiting", "while running"])
async def test_a_cancelled_request_frees_its_rows_and_its_client_is_told(live: Live, by: str, pause: int) -> None:
    live.dispatcher.pause = pause
    task = await live.begin(CHAT, chat_body(n=2), 2)
    (under_way,) = (await get(live, ALL))["data"]
    assert await cancel(live, under_way[by]) == "cancelled"
    assert live.dispatcher.table.requests_running == 0
    words = {"message": "the request was cancelled by its id", "type": "RequestCancelledError"}
    assert await task == (499, {"error": {**words, "param": None, "code": "request_cancelled"}})
    assert (await get(live, f"{ALL}/{under_way['id']}"))["state"] == "cancelled"


async def test_a_cancelled_stream_ends_with_an_error_event_and_the_end_marker(live: Live) -> None:
    live.dispatcher.script, live.dispatcher.pause = endless, 3
    async with live.streaming(CHAT, chat_body()) as content:
        first = await content.readuntil(b"\n\n")
        assert await cancel(live, orjson.loads(first.removeprefix(b"data: "))["id"]) == "cancelled"
        *events, last = parse_events(first + await content.read())
    assert text_of(events) == "AAA"
    assert last["error"]["code"] == "request_cancelled"


async def test_a_cancelled_response_ends_with_its_failed_event(live: Live) -> None:
    live.dispatcher.pause = 1
    async with live.streaming(RESPONSES, {"input": "Hi"}) as content:
        first = await content.readuntil(b"\n\n")
        assert await cancel(live, orjson.loads(first.partition(b"data: ")[2])["response"]["id"]) == "cancelled"
        last = (await content.read()).split(b"\n\n")[-2]
    event = orjson.loads(last.partition(b"data: ")[2])
    assert (event["type"], event["response"]["status"]) == ("response.failed", "cancelled")
    assert event["response"]["error"]["code"] == "request_cancelled"


async def test_a_request_can_be_cancelled_before_it_is_in_line() -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def predict(*query: object, **told: object) -> None:
        asked.set()
        await go.wait()

    async with live_server(lengths=Mock(predict=predict)) as live:
        task = await live.begin(CHAT, chat_body(), 0, x_request_id="early")
        await asked.wait()
        assert (await get(live, f"{ALL}/early"))["state"] == "arrived"
        assert await cancel(live, "early") == "cancelled"
        go.set()
        assert (await task)[0] == 499
        assert live.dispatcher.submitted == []


async def test_cancelling_what_has_ended_changes_nothing(live: Live) -> None:
    assert await cancel(live, (await live.chat())["id"]) == "finished"
    assert live.dispatcher.cancelled == []


async def test_a_refused_call_leaves_no_trace_and_its_name_to_one_that_is_under_way(live: Live) -> None:
    """A refused call of the same X-Request-Id took the name away: the running one could not be found by it."""
    await live.refused(CHAT, chat_body(min_tokens=1000))
    assert await get(live, ALL) == {"data": [], "object": "list"}
    live.dispatcher.pause = 1
    task = await live.begin(CHAT, chat_body(), x_request_id="same")
    await live.refused(CHAT, chat_body(min_tokens=1000), x_request_id="same")
    assert await cancel(live, "same") == "cancelled"
    assert (await task)[0] == 499


async def test_the_list_has_the_latest_first_and_as_many_as_are_wanted(live: Live) -> None:
    names = [(await live.chat())["id"] for _ in range(3)]
    assert [one["id"] for one in (await get(live, f"{ALL}?limit=2"))["data"]] == names[:0:-1]


@pytest.fixture
async def turns(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[int]]:
    """How many turns others have had when each call of a list is told."""
    seen, counted, iterate = list[int](), itertools.count(), Register.iter_latest

    def watch(self: Register, holder: str | None, limit: int) -> Iterator[RequestStatus]:
        for status in iterate(self, holder, limit):
            seen.append(next(counted))
            yield status

    async def go_on() -> None:
        while True:
            next(counted)
            await asyncio.sleep(0)

    monkeypatch.setattr(Register, "iter_latest", watch)
    async with background(go_on(), "others"):
        yield seen


async def test_others_go_on_while_a_list_is_made(live: Live, turns: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """With 1,000 rows running and 10,000 calls in line it took two seconds of the event loop in one piece."""
    monkeypatch.setattr(requests, "PIECE", 2)
    for _ in range(4):
        await live.chat()
    await get(live, ALL)
    assert [after - before for before, after in itertools.pairwise(turns)] == [1, 2, 1]


LIMITS = ("0", "1001", "-1", "1.5", "", "²", "9" * 30)
WRONG = [("row", "one"), ("explain", "2"), *(("limit", limit) for limit in LIMITS)]


@pytest.mark.parametrize(("name", "value"), WRONG)
async def test_a_wrong_query_is_400(live: Live, name: str, value: str) -> None:
    reply = await live.get(f"{ALL}?{name}={value}")
    assert (reply.status, reply.json["error"]["param"]) == (400, name)


async def test_an_unknown_request_is_404(live: Live) -> None:
    assert (await get(live, f"{ALL}/nobody"))["error"]["code"] == "request_not_found"
    await live.refused(f"{ALL}/nobody/cancel", None, 404, code="request_not_found")


ONE, OTHER = "one-key-of-ours-0123456789", "other-key-of-ours-0123456789"


@pytest.fixture
async def locked() -> AsyncIterator[Live]:
    async with live_server(keys=[ONE, OTHER]) as live:
        yield live


async def test_a_key_neither_sees_nor_cancels_the_requests_of_another(locked: Live) -> None:
    locked.dispatcher.pause = 1
    task = await locked.begin(CHAT, chat_body(), 1, x_request_id="secret", **bearer(ONE))
    (own,) = (await get(locked, ALL, ONE))["data"]
    assert (await get(locked, ALL, OTHER))["data"] == []
    for name in ("secret", own["id"]):
        assert await status_of(locked, name, OTHER) == 404
        await locked.refused(f"{ALL}/{name}/cancel", None, 404, **bearer(OTHER))
    assert locked.dispatcher.cancelled == []
    locked.dispatcher.release()
    status, reply = await task
    assert (status, reply["choices"][0]["message"]["content"]) == (200, ANSWER)
    assert await status_of(locked, own["id"], OTHER) == 404
    assert (await get(locked, f"{ALL}/{own['id']}", ONE))["state"] == "finished"


async def test_a_request_that_waits_is_told_why_and_of_others_only_their_number(locked: Live) -> None:
    async def begin(name: str, key: str, n: int = 1, **fields: int) -> asyncio.Task[tuple[int, Any]]:
        return await locked.begin(CHAT, chat_body(n=n, **fields), n, x_request_id=name, **bearer(key))

    locked.dispatcher.pause = 0
    tasks = [await begin("other", OTHER), await begin("first", ONE, n=2)]
    tasks += [await begin("last", ONE), await begin("urgent", OTHER, priority=-1)]
    (first,) = [one for one in (await get(locked, ALL, ONE))["data"] if one["request_id"] == "first"]
    assert "waits_for" not in first
    told = await get(locked, f"{ALL}/last?explain=1", ONE)
    ahead = {"ahead": 4, "better_priority": 1, "came_earlier": 3, "put_first": 0, "own_ahead": [first["id"]]}
    assert told["place"] == 5
    assert told["waits_for"] == {"strategy": "baton-pd", **ahead, "passed_for_s": 0.0}
    assert (await get(locked, f"{ALL}/first?explain=1", ONE))["waits_for"]["own_ahead"] == []
    other, row = (locked.dispatcher.submitted[place].row_id for place in (0, 3))
    (by_row,) = (await get(locked, f"{ALL}?row={row}", ONE))["data"]
    assert (by_row["id"], by_row["waits_for"]) == (told["id"], told["waits_for"])
    assert (await get(locked, f"{ALL}?row={other}", ONE))["data"] == []
    assert await status_of(locked, "last?explain=1", OTHER) == 404
    locked.dispatcher.release()
    await asyncio.gather(*tasks)
    assert (await get(locked, f"{ALL}/last?explain=1", ONE))["waits_for"] is None
    assert (await get(locked, f"{ALL}/last?explain=yes", ONE))["error"]["param"] == "explain"


async def test_others_go_on_between_calls_of_many_answers_and_one_is_explained(live: Live, turns: list[int]) -> None:
    """With 15 calls of 256 prompts in line, a list held the loop for 185 ms, and an explanation for 281."""
    live.dispatcher.pause = 0
    body = {"prompt": ["x"] * 30, "max_tokens": 1}
    tasks = [await live.begin(COMPLETIONS, body, 30, x_request_id=name) for name in ("many", "more")]
    explain = live.dispatcher.waits.explain = Mock(wraps=live.dispatcher.waits.explain)  # type: ignore[method-assign]
    await get(live, f"{ALL}?limit=1000")
    assert turns[1] - turns[0] == 2, "nothing else ran between two calls"
    assert (await get(live, f"{ALL}/more?explain=1"))["waits_for"]["ahead"] == 30
    explain.assert_called_once_with(live.dispatcher.submitted[30])
    live.dispatcher.release()
    await asyncio.gather(*tasks)


async def test_two_clients_may_call_their_requests_the_same(locked: Live) -> None:
    for key in (ONE, OTHER):
        await locked.obtain(CHAT, chat_body(), x_request_id="1", **bearer(key))
    assert len({(await get(locked, f"{ALL}/1", key))["id"] for key in (ONE, OTHER)}) == 2
