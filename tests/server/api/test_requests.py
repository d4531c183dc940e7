"""GET /v1/requests, GET /v1/requests/{id}, POST /v1/requests/{id}/cancel, over loopback."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import orjson
import pytest

from scheduler.clock import background
from scheduler.request import Request
from scheduler.wait_estimate.places import Explanation
from server.api import register as requests
from server.api.register import Register
from server.api.request_status import RequestStatus
from tests.server.fakes import ANSWER, endless
from tests.server.live import Live, bearer, chat_body, live_server, parse_events, text_of

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"


async def get(live: Live, path: str, key: str | None = None) -> tuple[int, Any]:
    reply = await live.get(path, **({} if key is None else bearer(key)))
    return reply.status, reply.json


async def cancel(live: Live, name: str, key: str | None = None) -> tuple[int, Any]:
    return await live.post(f"/v1/requests/{name}/cancel", None, **({} if key is None else bearer(key)))


def begin(live: Live, path: str, body: dict[str, object], **headers: str) -> asyncio.Task[tuple[int, Any]]:
    """A call under way, in a task of its own."""
    return asyncio.create_task(live.post(path, body, **headers))


async def test_a_request_that_waits_tells_its_place_and_how_long_it_is_expected_to_take(live: Live) -> None:
    live.dispatcher.crowd(waiting=2)
    live.dispatcher.waits.wait = lambda request: 1.25  # type: ignore[method-assign]
    task = begin(live, CHAT, chat_body(n=2, max_tokens=30), x_request_id="mine")
    await live.dispatcher.until(lambda: len(live.dispatcher.submitted) == 2)
    _, status = await get(live, "/v1/requests/mine")
    for request in live.dispatcher.submitted:
        assert (request.state, request.times.started) == ("waiting", None)
    assert status["id"].startswith("chatcmpl-")
    told = {"state": "waiting", "place": 3, "expected_wait_s": 1.25, "endpoint": CHAT, "model": "fake", "stream": False}
    assert {name: status[name] for name in told} == told
    assert (status["max_tokens"], status["generated_tokens"], status["request_id"]) == (60, 0, "mine")
    assert status["metrics"]["queue_time_ms"] is None
    assert [choice["state"] for choice in status["choices"]] == ["waiting", "waiting"]
    live.dispatcher.release()
    assert (await task)[0] == 200


async def test_a_request_that_runs_tells_its_tokens_and_one_that_has_ended_its_times(live: Live) -> None:
    live.dispatcher.pause = 2
    body = orjson.dumps({"prompt": "Hi", "max_tokens": 5, "stream": True})
    async with live.session.post(live.url + COMPLETIONS, data=body) as response:
        for _ in range(2):
            await response.content.readuntil(b"\n\n")
        _, listed = await get(live, "/v1/requests")
        live.dispatcher.release()
        await response.read()
    (running,) = listed["data"]
    assert (running["state"], running["place"], running["prompt_tokens"]) == ("running", None, 2)
    assert (running["generated_tokens"], running["stream"]) == (2, True)
    status, ended = await get(live, f"/v1/requests/{running['id']}")
    assert (status, ended["state"], ended["generated_tokens"]) == (200, "finished", 5)
    assert ended["metrics"]["generation_time_ms"] >= 0
    assert (await get(live, f"/v1/requests/{running['id']}"))[1]["age_s"] == ended["age_s"]


@pytest.mark.parametrize("by", ["id", "request_id"])
@pytest.mark.parametrize("pause", [0, 2], ids=["while waiting", "while running"])
async def test_a_cancelled_request_frees_its_rows_and_its_client_is_told(live: Live, by: str, pause: int) -> None:
    live.dispatcher.pause = pause
    task = begin(live, CHAT, chat_body(n=2))
    await live.dispatcher.until(lambda: len(live.dispatcher.submitted) == 2)
    (under_way,) = (await get(live, "/v1/requests"))[1]["data"]
    status, reply = await cancel(live, under_way[by])
    assert (status, reply["state"]) == (200, "cancelled")
    assert live.dispatcher.table.requests_running == 0
    status, reply = await task
    words = {"message": "the request was cancelled by its id", "type": "RequestCancelledError"}
    assert (status, reply["error"]) == (499, {**words, "param": None, "code": "request_cancelled"})
    assert (await get(live, f"/v1/requests/{under_way['id']}"))[1]["state"] == "cancelled"


async def test_a_cancelled_stream_ends_with_an_error_event_and_the_end_marker(live: Live) -> None:
    live.dispatcher.script, live.dispatcher.pause = endless, 3
    async with live.session.post(live.url + CHAT, data=orjson.dumps(chat_body(stream=True))) as response:
        first = await response.content.readuntil(b"\n\n")
        name = orjson.loads(first.removeprefix(b"data: "))["id"]
        assert (await cancel(live, name))[0] == 200
        *events, last = parse_events(first + await response.read())
    assert text_of(events) == "AAA"
    assert last["error"]["code"] == "request_cancelled"


async def test_a_cancelled_response_ends_with_its_failed_event(live: Live) -> None:
    live.dispatcher.pause = 1
    async with live.session.post(live.url + RESPONSES, data=b'{"input": "Hi", "stream": true}') as response:
        first = await response.content.readuntil(b"\n\n")
        name = orjson.loads(first.partition(b"data: ")[2])["response"]["id"]
        assert (await cancel(live, name))[1]["state"] == "cancelled"
        last = (await response.read()).split(b"\n\n")[-2]
    event = orjson.loads(last.partition(b"data: ")[2])
    assert (event["type"], event["response"]["status"]) == ("response.failed", "cancelled")
    assert event["response"]["error"]["code"] == "request_cancelled"


async def test_a_request_can_be_cancelled_before_it_is_in_line(live: Live) -> None:
    class Slow:
        """Predicts when it is told to."""

        def __init__(self) -> None:
            self.asked, self.go = asyncio.Event(), asyncio.Event()

        async def predict(self, query: object, sampling: object, **told: object) -> None:
            self.asked.set()
            await self.go.wait()

        def note(self, *noted: object) -> None:
            pass

    slow = Slow()
    async with live_server(lengths=slow) as server:
        task = begin(server, CHAT, chat_body(), x_request_id="early")
        await slow.asked.wait()
        assert (await get(server, "/v1/requests/early"))[1]["state"] == "arrived"
        assert (await cancel(server, "early"))[1]["state"] == "cancelled"
        slow.go.set()
        assert (await task)[0] == 499
        assert server.dispatcher.submitted == []


async def test_cancelling_what_has_ended_changes_nothing(live: Live) -> None:
    name = (await live.chat())["id"]
    assert (await cancel(live, name))[1]["state"] == "finished"
    assert live.dispatcher.cancelled == []


async def test_calls_that_are_refused_leave_no_trace(live: Live) -> None:
    assert (await live.post(CHAT, chat_body(min_tokens=1000)))[0] == 400
    assert (await get(live, "/v1/requests"))[1] == {"data": [], "object": "list"}


async def test_a_refused_call_leaves_the_name_to_one_that_is_under_way(live: Live) -> None:
    """A refused call of the same X-Request-Id took the name away: the running one could not be found by it."""
    live.dispatcher.pause = 1
    task = begin(live, CHAT, chat_body(), x_request_id="same")
    await live.dispatcher.until(lambda: len(live.dispatcher.submitted) == 1)
    assert (await begin(live, CHAT, chat_body(min_tokens=1000), x_request_id="same"))[0] == 400
    assert (await cancel(live, "same"))[1]["state"] == "cancelled"
    assert (await task)[0] == 499


async def test_the_list_has_the_latest_first_and_as_many_as_are_wanted(live: Live) -> None:
    names = [(await live.chat())["id"] for _ in range(3)]
    _, listed = await get(live, "/v1/requests?limit=2")
    assert [one["id"] for one in listed["data"]] == names[:0:-1]


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
    await get(live, "/v1/requests")
    assert [after - before for before, after in itertools.pairwise(turns)] == [1, 2, 1]


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "1.5", "", "²", "9" * 30])
async def test_a_wrong_limit_is_400(live: Live, limit: str) -> None:
    status, reply = await get(live, f"/v1/requests?limit={limit}")
    assert (status, reply["error"]["param"]) == (400, "limit")


async def test_an_unknown_request_is_404(live: Live) -> None:
    for status, reply in (await get(live, "/v1/requests/nobody"), await cancel(live, "nobody")):
        assert (status, reply["error"]["code"]) == (404, "request_not_found")


ONE, OTHER = "one-key-of-ours-0123456789", "other-key-of-ours-0123456789"


@pytest.fixture
async def locked() -> AsyncIterator[Live]:
    async with live_server(keys=[ONE, OTHER]) as live:
        yield live


async def test_a_key_neither_sees_nor_cancels_the_requests_of_another(locked: Live) -> None:
    locked.dispatcher.pause = 1
    task = begin(locked, CHAT, chat_body(), x_request_id="secret", **bearer(ONE))
    await locked.dispatcher.until(lambda: len(locked.dispatcher.submitted) == 1)
    (own,) = (await get(locked, "/v1/requests", ONE))[1]["data"]
    assert (await get(locked, "/v1/requests", OTHER))[1]["data"] == []
    for name in ("secret", own["id"]):
        assert (await get(locked, f"/v1/requests/{name}", OTHER))[0] == 404
        assert (await cancel(locked, name, OTHER))[0] == 404
    assert locked.dispatcher.cancelled == []
    locked.dispatcher.release()
    status, reply = await task
    assert (status, reply["choices"][0]["message"]["content"]) == (200, ANSWER)
    assert (await get(locked, f"/v1/requests/{own['id']}", OTHER))[0] == 404
    assert (await get(locked, f"/v1/requests/{own['id']}", ONE))[1]["state"] == "finished"


async def test_a_request_that_waits_is_told_why_and_of_others_only_their_number(locked: Live) -> None:
    locked.dispatcher.pause = 0
    tasks, waiting = [], 0
    for name, key, fields in (
        ("other", OTHER, {}),
        ("first", ONE, {"n": 2}),
        ("last", ONE, {}),
        ("urgent", OTHER, {"priority": -1}),
    ):
        tasks.append(begin(locked, CHAT, chat_body(**fields), x_request_id=name, **bearer(key)))
        waiting += fields.get("n", 1)
        await locked.dispatcher.until(lambda: len(locked.dispatcher.submitted) == waiting)  # noqa: B023
    (first,) = [one for one in (await get(locked, "/v1/requests", ONE))[1]["data"] if one["request_id"] == "first"]
    assert "waits_for" not in first
    status, told = await get(locked, "/v1/requests/last?explain=1", ONE)
    ahead = {"ahead": 4, "better_priority": 1, "came_earlier": 3, "put_first": 0, "own_ahead": [first["id"]]}
    assert (status, told["place"]) == (200, 5)
    assert told["waits_for"] == {"strategy": "baton-pd", **ahead, "passed_for_s": 0.0}
    assert (await get(locked, "/v1/requests/first?explain=1", ONE))[1]["waits_for"]["own_ahead"] == []
    other, row = (locked.dispatcher.submitted[place].row_id for place in (0, 3))
    (by_row,) = (await get(locked, f"/v1/requests?row={row}", ONE))[1]["data"]
    assert (by_row["id"], by_row["waits_for"]) == (told["id"], told["waits_for"])
    assert (await get(locked, f"/v1/requests?row={other}", ONE))[1]["data"] == []
    assert (await get(locked, "/v1/requests?row=one", ONE))[1]["error"]["param"] == "row"
    assert (await get(locked, "/v1/requests/last?explain=1", OTHER))[0] == 404
    locked.dispatcher.release()
    await asyncio.gather(*tasks)
    assert (await get(locked, "/v1/requests/last?explain=1", ONE))[1]["waits_for"] is None
    for path in ("/v1/requests/last?explain=yes", "/v1/requests?explain=2"):
        assert (await get(locked, path, ONE))[1]["error"]["param"] == "explain"


async def test_others_go_on_between_calls_of_many_answers_and_one_answer_is_explained(
    live: Live, turns: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 15 calls of 256 prompts in line, a list held the loop for 185 ms, and an explanation for 281."""
    live.dispatcher.pause = 0
    body = {"prompt": ["x"] * 30, "max_tokens": 1}
    tasks = [begin(live, COMPLETIONS, body, x_request_id=name) for name in ("many", "more")]
    await live.dispatcher.until(lambda: len(live.dispatcher.submitted) == 60)
    explained, explain = list[Request](), live.dispatcher.waits.explain

    def note(request: Request) -> Explanation | None:
        explained.append(request)
        return explain(request)

    monkeypatch.setattr(live.dispatcher.waits, "explain", note)
    await get(live, "/v1/requests?limit=1000")
    assert turns[1] - turns[0] == 2, "nothing else ran between two calls"
    assert (await get(live, "/v1/requests/more?explain=1"))[1]["waits_for"]["ahead"] == 30
    assert explained == [live.dispatcher.submitted[30]]
    live.dispatcher.release()
    await asyncio.gather(*tasks)


async def test_two_clients_may_call_their_requests_the_same(locked: Live) -> None:
    for key in (ONE, OTHER):
        await begin(locked, CHAT, chat_body(), x_request_id="1", **bearer(key))
    found = [(await get(locked, "/v1/requests/1", key))[1]["id"] for key in (ONE, OTHER)]
    assert len(set(found)) == 2
