"""Promises that are told, asked for and refused."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from aiohttp import StreamReader

from scheduler.request import COVERAGE
from scheduler.wait_estimate.expected_wait import FARTHEST
from server.api.errors import ApiError
from server.api.input.promise import HEADER, read_header
from server.api.output.reply import BY
from server.config import ServeConfig
from tests.server.api.output.test_sse import ASKED
from tests.server.api.test_estimate import ESTIMATE, ask, measured
from tests.server.gateway.backends import Backend, chat, gateway
from tests.server.live import CHAT, Live, chat_body

MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}


@pytest.fixture
def limits(quick_looks: None) -> ServeConfig:
    return ServeConfig(sse_keep_alive_interval=0)


def moment(text: str) -> datetime:
    assert text.endswith("Z")
    return datetime.fromisoformat(text)


async def next_moment(content: StreamReader, begin: str = ": queued") -> datetime:
    """By when the answer is there, as the next comment of a stream says."""
    comment = (await content.readuntil(b"\n\n")).decode().strip()
    assert comment.startswith(begin)
    return moment(comment.rpartition(" by=")[2])


async def estimate(live: Live, **fields: object) -> Any:
    return await live.obtain(ESTIMATE, {**MESSAGES, **fields})


async def test_every_answer_is_told_by_when_it_is_there_and_how_surely(live: Live) -> None:
    _, _, headers = await ask(live, CHAT, chat_body())
    assert BY not in headers, "nothing was measured"
    await measured(live)
    before = datetime.now(UTC)
    _, _, headers = await ask(live, CHAT, chat_body())
    assert before < moment(headers[BY]) < before + timedelta(seconds=60)
    assert headers["x-lengthwise-coverage"] == str(COVERAGE)
    told = await estimate(live, promise={"within_ms": 0.001, "coverage": 0.8})
    assert moment(told["by"]) > before and told["coverage"] == 0.8 and told["refused"] == "promise_refused"
    assert "refused" not in await estimate(live, promise={"within_ms": 60_000})
    told = await estimate(live)
    await live.obtain(CHAT, {**MESSAGES, "promise": {"by": told["by"]}})  # a little later
    live.dispatcher.crowd(waiting=300)
    assert (await estimate(live, deadline_ms=1))["refused"] == "deadline_unreachable"


async def test_a_stream_that_asks_for_progress_is_told_by_when_it_ends(live: Live) -> None:
    await measured(live)
    live.dispatcher.crowd(waiting=2)
    async with live.streaming(CHAT, chat_body(stream_options=ASKED)) as content:
        assert await next_moment(content, ": queued place=3") > datetime.now(UTC) - timedelta(seconds=1)
        live.dispatcher.release()


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
@pytest.mark.parametrize("in_header", [False, True], ids=["field", "header"])
async def test_a_promise_that_can_be_kept_is_given_and_others_refused(live: Live, path: str, in_header: bool) -> None:
    async def asked(expected: int, **promise: Any) -> tuple[Any, Any]:
        fields, header = ({}, {HEADER: orjson.dumps(promise).decode()}) if in_header else ({"promise": promise}, {})
        status, reply, headers = await ask(live, path, MESSAGES | fields, **header)
        assert status == expected
        return str(reply), headers

    said, headers = await asked(503, within_ms=60_000)
    assert BY not in headers and "too little is measured yet" in said
    await measured(live)
    assert (await asked(200, within_ms=60_000, coverage=None))[1]["x-lengthwise-coverage"] == str(COVERAGE)
    assert (await asked(200, within_ms=60_000, coverage=0.9))[1]["x-lengthwise-coverage"] == "0.9"
    assert live.dispatcher.submitted[-1].promised is not None
    later = datetime.now(UTC) + timedelta(minutes=1)
    await asked(200, by=later.isoformat())
    promised = live.dispatcher.submitted[-1].promised
    assert abs(promised - live.dispatcher.now() - 60) < 5
    count = len(live.dispatcher.submitted)
    said, headers = await asked(503, within_ms=0.001)
    assert headers["Retry-After"] == "1" and len(live.dispatcher.submitted) == count
    assert headers["x-should-retry"] == "false", "SDKs ask twice more"
    assert moment(headers[BY]) > later - timedelta(minutes=2) and headers[BY] in said


async def test_who_asked_for_a_promise_is_told_an_earlier_time_while_it_waits_and_never_a_later(live: Live) -> None:
    await measured(live)
    live.dispatcher.crowd(waiting=300)
    body = chat_body(stream_options=ASKED, promise={"within_ms": 600_000})
    async with live.streaming(CHAT, body) as content:
        first = await next_moment(content)
        one, asked = live.dispatcher.submitted[-1], live.dispatcher.submitted[-1].promised
        for ahead in [*live.dispatcher.waiting][:299]:
            live.dispatcher.cancel(ahead)
        while (earlier := await next_moment(content)) == first:
            pass
        assert earlier < first and one.promised == asked
        live.dispatcher.crowd(waiting=0, free=0)
        for _ in range(2):
            assert abs(await next_moment(content) - earlier) < timedelta(milliseconds=5)  # between two clocks
        assert not live.dispatcher.waits.tell_again(one), "only by a fifth of what is left"
        live.dispatcher.release()
        await content.read()
        assert not live.dispatcher.waits.tell_again(one), "it does not wait any longer"


async def test_each_choice_waits_behind_those_before_it_in_the_estimate_as_in_the_call(live: Live) -> None:
    """Each was estimated as if it were alone, and a call was refused at its last choice with the first ones queued."""
    await measured(live)
    live.dispatcher.crowd(waiting=0, free=1)
    count = len(live.dispatcher.submitted)
    told = [await estimate(live, n=n) for n in (1, 2)]
    assert [(one["place"], one["expected_wait_s"]) for one in told] == [(1, 0.0)] * 2
    alone, both = (one["expected_completion_s"]["high"] for one in told)
    assert both > alone
    await live.refused(CHAT, {**MESSAGES, "n": 2, "promise": {"within_ms": 500 * (alone + both)}}, 503)
    assert len(live.dispatcher.submitted) == count
    live.dispatcher.release()
    await live.obtain(CHAT, {**MESSAGES, "n": 2, "promise": {"within_ms": 60_000}})


UNREADABLE = [
    ({}, "either by or within_ms"),
    ({"by": "2030-01-01T00:00:00Z", "within_ms": 5}, "either by or within_ms"),
    ({"within_ms": 0}, "> 0"),
    ({"within_ms": FARTHEST * 1000 + 1}, "<= 2592000000"),
    ({"within_ms": 5, "coverge": 0.9}, "unknown field `coverge`"),
    ({"within_ms": 5, "coverage": 1.0}, "<= 0.99"),
    ({"within_ms": -5}, "> 0"),
    ({"by": "2020-01-01T00:00:00Z"}, "promise.by: is in the past: it is 2"),
    ({"by": "2030-01-01T00:00:00"}, "timezone"),
    ({"by": "tomorrow"}, "RFC3339"),
    ({"by": "9999-12-31T23:59:59-14:00"}, "within 30 days"),
]


@pytest.mark.parametrize(("promise", "fault"), UNREADABLE)
async def test_a_promise_that_cannot_be_read_is_refused(live: Live, promise: dict[str, Any], fault: str) -> None:
    body, past = chat_body(promise=promise), "past" in fault
    await live.refused(CHAT, body, param="promise.by" if past else "promise", said=fault)
    error = await live.refused(CHAT, chat_body(), 400, said=fault, **{HEADER: orjson.dumps(promise).decode()})
    assert error["param"] in (("promise.by",) if past else ("promise", HEADER))


async def test_a_header_that_is_no_promise_is_refused(live: Live) -> None:
    await live.refused(CHAT, chat_body(), 400, param=HEADER, **{HEADER: "soon"})
    with pytest.raises(ApiError, match="must be JSON in UTF-8"):
        read_header({HEADER: "\udcff"})  # as aiohttp has the byte 0xff


PRECEDENCE = [
    ({"within_ms": 60_000}, '{"within_ms": 0.001}', 200),
    ({"within_ms": 0.001}, '{"within_ms": 60000}', 503),
    ({"within_ms": 60_000}, "soon", 200),
    (None, '{"within_ms": 0.001}', 503),
]


@pytest.mark.parametrize("case", PRECEDENCE)
async def test_a_promise_in_the_body_precedes_that_in_a_header(live: Live, case: tuple[Any, str, int]) -> None:
    field, header, status = case
    await measured(live)
    body, asked = {**MESSAGES, "promise": field}, {HEADER: header}
    assert [(await ask(live, path, body, **asked))[0] for path in (CHAT, "/v1/messages")] == [status] * 2
    assert ((await ask(live, ESTIMATE, body, **asked))[1].get("refused") is None) == (status == 200)
    async with gateway(Backend(waits=False)) as gate:
        gate.measure()
        async with gate.client.post(CHAT, json=chat(promise=field), headers={HEADER: header}) as answer:
            assert (answer.status, BY in answer.headers) == (status, True)
            assert status == 200 or (await answer.json())["error"]["code"] == "promise_refused"


async def test_any_promise_may_be_thirty_days_ahead(live: Live) -> None:
    """`within_ms` ended at a day, `by` at thirty."""
    ahead = datetime.fromtimestamp(time.time() + FARTHEST - 60, UTC).isoformat()
    for promise in ({"within_ms": FARTHEST * 1000}, {"by": ahead}):
        await estimate(live, promise=promise)
