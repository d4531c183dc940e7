"""Promises that are told, asked for and refused."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from scheduler.request import COVERAGE
from scheduler.wait_estimate.expected_wait import FARTHEST
from server.api.errors import ApiError
from server.api.input.promise import HEADER, read_header
from server.api.output.reply import BY
from server.config import ServeConfig
from tests.server.api.output.test_sse import ASKED, streaming
from tests.server.api.test_estimate import CHAT, ESTIMATE, ask, measured
from tests.server.gateway.backends import Backend, chat, gateway
from tests.server.live import Live, chat_body

MESSAGES = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}


@pytest.fixture
def limits(quick_looks: None) -> ServeConfig:
    return ServeConfig(sse_keep_alive_interval=0)


def moment(text: str) -> datetime:
    assert text.endswith("Z")
    return datetime.fromisoformat(text)


async def test_every_answer_is_told_by_when_it_is_there_and_how_surely(live: Live) -> None:
    _, _, headers = await ask(live, CHAT, chat_body())
    assert BY not in headers, "nothing was measured"
    await measured(live)
    before = datetime.now(UTC)
    _, _, headers = await ask(live, CHAT, chat_body())
    assert before < moment(headers[BY]) < before + timedelta(seconds=60)
    assert headers["x-lengthwise-coverage"] == str(COVERAGE)
    _, told, _ = await ask(live, ESTIMATE, chat_body(promise={"within_ms": 0.001, "coverage": 0.8}))
    assert moment(told["by"]) > before and told["coverage"] == 0.8 and told["refused"] == "promise_refused"
    _, told, _ = await ask(live, ESTIMATE, chat_body(promise={"within_ms": 60_000}))
    assert "refused" not in told
    _, told, _ = await ask(live, ESTIMATE, MESSAGES)
    assert (await ask(live, CHAT, {**MESSAGES, "promise": {"by": told["by"]}}))[0] == 200, "a little later"


async def test_an_estimate_says_that_a_deadline_cannot_be_met(live: Live) -> None:
    await measured(live)
    live.dispatcher.crowd(waiting=300)
    _, told, _ = await ask(live, ESTIMATE, chat_body(deadline_ms=1))
    assert told["refused"] == "deadline_unreachable"


async def test_a_stream_that_asks_for_progress_is_told_by_when_it_ends(live: Live) -> None:
    await measured(live)
    live.dispatcher.crowd(waiting=2)
    async with streaming(live, CHAT, chat_body(stream_options=ASKED)) as content:
        comment = (await content.readuntil(b"\n\n")).decode()
        assert comment.startswith(": queued place=3")
        assert moment(comment.strip().rpartition(" by=")[2]) > datetime.now(UTC) - timedelta(seconds=1)
        live.dispatcher.release()


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
@pytest.mark.parametrize("in_header", [False, True], ids=["field", "header"])
async def test_a_promise_that_can_be_kept_is_given_and_others_refused(live: Live, path: str, in_header: bool) -> None:
    async def asked(**promise: Any) -> tuple[int, Any, Any]:
        if in_header:
            return await ask(live, path, MESSAGES, **{HEADER: orjson.dumps(promise).decode()})
        return await ask(live, path, {**MESSAGES, "promise": promise})

    status, reply, headers = await asked(within_ms=60_000)
    assert status == 503 and BY not in headers and "too little is measured yet" in str(reply)
    await measured(live)
    assert (await asked(within_ms=60_000, coverage=None))[2]["x-lengthwise-coverage"] == str(COVERAGE)
    status, _, headers = await asked(within_ms=60_000, coverage=0.9)
    assert (status, headers["x-lengthwise-coverage"]) == (200, "0.9")
    assert live.dispatcher.submitted[-1].promised is not None
    later = datetime.now(UTC) + timedelta(minutes=1)
    assert (await asked(by=later.isoformat()))[0] == 200
    promised = live.dispatcher.submitted[-1].promised
    assert abs(promised - live.dispatcher.now() - 60) < 5
    count = len(live.dispatcher.submitted)
    status, reply, headers = await asked(within_ms=0.001)
    assert status == 503 and headers["Retry-After"] == "1" and len(live.dispatcher.submitted) == count
    assert headers["x-should-retry"] == "false", "SDKs ask twice more"
    assert moment(headers[BY]) > later - timedelta(minutes=2) and headers[BY] in str(reply)
    status, _, headers = await asked(by="2020-01-01T00:00:00Z")
    assert status == 503 and int(headers["Retry-After"]) < 60, "from now, not from what has passed"


async def test_who_asked_for_a_promise_is_told_an_earlier_time_while_it_waits_and_never_a_later(live: Live) -> None:
    await measured(live)
    live.dispatcher.crowd(waiting=300)
    body = chat_body(stream_options=ASKED, promise={"within_ms": 600_000})

    async def told() -> datetime:
        comment = (await content.readuntil(b"\n\n")).decode()
        return moment(comment.strip().rpartition(" by=")[2])

    async with streaming(live, CHAT, body) as content:
        first = await told()
        one, asked = live.dispatcher.submitted[-1], live.dispatcher.submitted[-1].promised
        for ahead in [*live.dispatcher.waiting][:299]:
            live.dispatcher.cancel(ahead)
        while (earlier := await told()) == first:
            pass
        assert earlier < first and one.promised == asked
        live.dispatcher.crowd(waiting=0, free=0)
        for again in (await told(), await told()):
            assert abs(again - earlier) < timedelta(milliseconds=5)  # between two clocks
        assert not live.dispatcher.waits.tell_again(one), "only by a fifth of what is left"
        live.dispatcher.release()
        await content.read()
        assert not live.dispatcher.waits.tell_again(one), "it does not wait any longer"


async def test_each_choice_waits_behind_those_before_it_in_the_estimate_as_in_the_call(live: Live) -> None:
    """Each was estimated as if it were alone, and a call was refused at its last choice with the first ones queued."""
    await measured(live)
    live.dispatcher.crowd(waiting=0, free=1)
    count = len(live.dispatcher.submitted)
    alone, both = [(await ask(live, ESTIMATE, {**MESSAGES, "n": n}))[1] for n in (1, 2)]
    assert both["place"] == alone["place"] == 1 and both["expected_wait_s"] == alone["expected_wait_s"] == 0.0
    ends = [told["expected_completion_s"]["high"] for told in (alone, both)]
    assert ends[1] > ends[0]
    between = {"within_ms": 500 * sum(ends)}
    assert (await ask(live, CHAT, {**MESSAGES, "n": 2, "promise": between}))[0] == 503
    assert len(live.dispatcher.submitted) == count
    live.dispatcher.release()
    assert (await ask(live, CHAT, {**MESSAGES, "n": 2, "promise": {"within_ms": 60_000}}))[0] == 200


UNREADABLE = [
    ({}, "either by or within_ms"),
    ({"by": "2030-01-01T00:00:00Z", "within_ms": 5}, "either by or within_ms"),
    ({"within_ms": 0}, "> 0"),
    ({"within_ms": FARTHEST * 1000 + 1}, "<= 2592000000"),
    ({"within_ms": 5, "coverge": 0.9}, "unknown field `coverge`"),
    ({"within_ms": 5, "coverage": 1.0}, "<= 0.99"),
    ({"by": "2030-01-01T00:00:00"}, "timezone"),
    ({"by": "tomorrow"}, "RFC3339"),
    ({"by": "9999-12-31T23:59:59-14:00"}, "within 30 days"),
]


@pytest.mark.parametrize(("promise", "fault"), UNREADABLE)
async def test_a_promise_that_cannot_be_read_is_refused(live: Live, promise: dict[str, Any], fault: str) -> None:
    for status, reply, _ in (
        await ask(live, CHAT, chat_body(promise=promise)),
        await ask(live, CHAT, chat_body(), **{HEADER: orjson.dumps(promise).decode()}),
    ):
        assert status == 400 and fault in reply["error"]["message"]
        assert reply["error"]["param"] in ("promise", HEADER)
    status, reply, _ = await ask(live, CHAT, chat_body(), **{HEADER: "soon"})
    assert (status, reply["error"]["param"]) == (400, HEADER)
    with pytest.raises(ApiError, match="must be JSON in UTF-8"):
        read_header({HEADER: "\udcff"})  # as aiohttp has the byte 0xff


PRECEDENCE = [
    ({"within_ms": 60_000}, '{"within_ms": 0.001}', 200),
    ({"within_ms": 0.001}, '{"within_ms": 60000}', 503),
    ({"within_ms": 60_000}, "soon", 200),
    (None, '{"within_ms": 0.001}', 503),
]


@pytest.mark.parametrize(("field", "header", "status"), PRECEDENCE)
async def test_a_promise_in_the_body_precedes_that_in_a_header(
    live: Live, field: Any, header: str, status: int
) -> None:
    await measured(live)
    body, asked = {**MESSAGES, "promise": field}, {HEADER: header}
    assert [(await ask(live, path, body, **asked))[0] for path in (CHAT, "/v1/messages")] == [status] * 2
    assert ((await ask(live, ESTIMATE, body, **asked))[1].get("refused") is None) == (status == 200)
    async with gateway(Backend(waits=False)) as gate:
        gate.measure()
        async with gate.client.post(CHAT, json=chat(promise=field), headers={HEADER: header}) as answer:
            assert answer.status == status


async def test_any_promise_may_be_thirty_days_ahead(live: Live) -> None:
    """`within_ms` ended at a day, `by` at thirty."""
    ahead = datetime.fromtimestamp(time.time() + FARTHEST - 60, UTC).isoformat()
    for promise in ({"within_ms": FARTHEST * 1000}, {"by": ahead}):
        assert (await ask(live, ESTIMATE, chat_body(promise=promise)))[0] == 200


async def test_a_gateway_tells_promises_and_refuses_those_that_it_cannot_keep() -> None:
    async with gateway(Backend(waits=False)) as gate:
        gate.measure()
        async with gate.client.post(CHAT, json=chat(promise={"within_ms": 60_000})) as answer:
            assert answer.status == 200 and BY in answer.headers
        for fields, headers in (({"promise": {"within_ms": 0.001}}, {}), ({}, {HEADER: '{"within_ms": 0.001}'})):
            async with gate.client.post(CHAT, json=chat(**fields), headers=headers) as answer:
                assert answer.status == 503 and BY in answer.headers
                assert (await answer.json())["error"]["code"] == "promise_refused"
        async with gate.client.post(CHAT, json=chat(promise="soon")) as answer:
            assert answer.status == 400
