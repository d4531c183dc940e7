"""Streams over raw sockets: framing, keep-alives, failures, and clients that leave or stand still."""

import asyncio
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import orjson
import pytest
from msgspec import structs

from engine.messages import RowSpec, RowUpdate
from scheduler.request import Request
from server.api.output.sse import KEEP_ALIVE, EventStream
from server.api.register import REGISTER
from server.config import ServeConfig
from tests.server.api.trimming_reader import TrimmingReader
from tests.server.fakes import ANSWER, answer, endless, failing
from tests.server.live import Live, bearer, chat_body, dechunk, live_server, parse_events, raw_post, text_of

CHAT = "/v1/chat/completions"
KEEP_ALIVE_CHUNK = b"%x\r\n%b\r\n" % (len(KEEP_ALIVE), KEEP_ALIVE)


@pytest.fixture
def limits(quick_looks: None) -> ServeConfig:
    return ServeConfig(sse_keep_alive_interval=0.02, send_timeout=0.3)


async def raw_stream(live: Live, **fields: object) -> list[bytes]:
    async with live.connect() as (reader, writer):
        writer.write(raw_post(CHAT, chat_body(stream=True, **fields)))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Transfer-Encoding: chunked\r\n" in head
        return dechunk(await reader.readuntil(b"0\r\n\r\n"))


async def test_every_event_is_written_whole_and_every_character_arrives_whole(live: Live) -> None:
    chunks = await raw_stream(live)
    assert all(chunk.endswith(b"\n\n") for chunk in chunks)
    pieces = [event["choices"][0]["delta"]["content"] for event in parse_events(b"".join(chunks))]
    assert [piece for piece in pieces if piece] == list(ANSWER)


@pytest.mark.parametrize(
    ("path", "fields"),
    [(CHAT, {}), ("/v1/completions", {}), (CHAT, {"stream_options": {"continuous_usage_stats": True}})],
)
async def test_frames_that_are_written_past_the_task_are_those_that_the_task_would_write(
    live: Live, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, object]
) -> None:
    """All but the first and the last, unless each tells more than its text; byte for byte, but for ids and times."""
    past, send_now = list[bytes](), EventStream.send_now

    def note(stream: EventStream, *frame: bytes) -> bool:
        past.append(b"".join(frame))
        return send_now(stream, *frame)

    async def written() -> list[bytes]:
        body = chat_body(stream=True, **fields) if path == CHAT else {"prompt": "Hi", "stream": True, "max_tokens": 99}
        async with live.connect() as (reader, writer):
            writer.write(raw_post(path, body))
            await reader.readuntil(b"\r\n\r\n")
            chunks = dechunk(await reader.readuntil(b"\r\n0\r\n\r\n"))
        return [re.sub(rb'"(id|created)":("[^"]*"|\d+)', rb"", one) for one in chunks if one != KEEP_ALIVE]

    with monkeypatch.context() as patch:
        patch.setattr(EventStream, "send_now", lambda stream, *frame: False)
        by_task = await written()
    monkeypatch.setattr(EventStream, "send_now", note)
    assert await written() == by_task
    assert len(past) == (0 if fields else len(ANSWER) - 1)


async def test_tokens_that_several_choices_get_in_one_step_leave_in_one_write(live: Live) -> None:
    chunks = [chunk for chunk in await raw_stream(live, n=8) if chunk != KEEP_ALIVE]
    assert chunks[0].count(b"data: ") == 8
    assert [text_of(parse_events(b"".join(chunks)), index) for index in range(8)] == [ANSWER] * 8


async def test_a_stream_that_waits_gets_blank_lines_so_that_every_reader_gets_what_is_behind(
    live: Live,
) -> None:
    """Comments went out here: a reader that trims what arrives lost every event behind one."""
    live.dispatcher.crowd(waiting=2)
    reader = TrimmingReader()
    async with live.connect() as (source, sink):
        sink.write(raw_post(CHAT, chat_body(stream=True)))
        await source.readuntil(b"\r\n\r\n")
        for _ in range(10):
            assert await source.readuntil(KEEP_ALIVE_CHUNK) == KEEP_ALIVE_CHUNK
        live.dispatcher.release()
        rest = dechunk(await source.readuntil(b"0\r\n\r\n"))
    assert text_of(parse_events(b"".join(rest))) == ANSWER
    pieces = [KEEP_ALIVE, *rest]
    assert text_of([event for piece in pieces for event in reader.feed(piece)]) == ANSWER
    assert reader.ended


COUNTERS = [
    ("/v1/responses", {"input": "Hi"}, b"event: response.in_progress\n"),
    ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}, b"event: ping\n"),
]


@pytest.mark.parametrize(("path", "fields", "sign"), COUNTERS)
async def test_a_wait_is_counted_by_counters(live: Live, path: str, fields: dict[str, object], sign: bytes) -> None:
    """Codex gave up after five minutes of blank lines, and lost its place."""
    live.dispatcher.crowd(waiting=2)
    async with live.connect() as (source, sink):
        sink.write(raw_post(path, {**fields, "stream": True}))
        waited = [await source.readuntil(sign) for _ in range(5)]
        live.dispatcher.release()
        rest = await source.readuntil(b"\r\n0\r\n\r\n")
    frames = re.findall(rb"data: ({.*})\n\n", b"".join([*waited, rest]))
    events = [orjson.loads(frame) for frame in frames]
    numbers = [event["sequence_number"] for event in events if "sequence_number" in event]
    assert numbers == list(range(len(numbers)))
    assert events[-1]["type"] in ("response.completed", "message_stop")


@pytest.mark.parametrize("name", ["x-client-request-id", "Idempotency-Key"])
async def test_a_call_that_comes_back_has_its_old_place_for_a_minute(live: Live, name: str) -> None:
    dispatcher = live.dispatcher
    dispatcher.crowd(waiting=0)

    async def break_off(**headers: str) -> Request:
        """A call that waits, and whose client leaves."""
        body = orjson.dumps(chat_body(stream=True))
        async with live.session.post(live.url + CHAT, data=body, headers=headers):
            request = dispatcher.submitted[-1]
        while len(live.app[REGISTER]):
            await asyncio.sleep(0)
        return request

    first = await break_off(**{name: "a"})
    other = await break_off(**{name: "b"})
    again = await break_off(**{name: "a"})
    assert again.times.arrival == first.times.arrival < other.times.arrival < again.times.came
    third = await break_off(**{name: "a"})  # which keeps it, as it was broken off again
    assert third.times.arrival == first.times.arrival
    dispatcher.skip(61)
    late = await break_off(**{name: "a"})
    assert late.times.arrival == late.times.came
    nameless = await break_off()
    assert nameless.times.arrival == nameless.times.came
    dispatcher.release()
    for _ in range(2):  # the first has the old place
        await live.obtain(CHAT, chat_body(), **{name: "a"})
    assert dispatcher.submitted[-1].times.arrival == dispatcher.submitted[-1].times.came  # nothing was broken off


async def test_a_place_is_its_keys_own() -> None:
    async with live_server(keys=["mine", "other"]) as live:
        live.dispatcher.crowd(waiting=0)
        asked = []
        for key in ("mine", "other", "mine"):
            before = len(live.dispatcher.cancelled)
            headers = {"x-client-request-id": "a", **bearer(key)}
            body = orjson.dumps(chat_body(stream=True))
            async with live.session.post(live.url + CHAT, data=body, headers=headers):
                asked.append(live.dispatcher.submitted[-1].times)
            await live.dispatcher.until(lambda: len(live.dispatcher.cancelled) > before)  # noqa: B023
        assert asked[0].arrival == asked[2].arrival < asked[1].arrival == asked[1].came
        live.dispatcher.release()


async def test_a_stream_that_falls_silent_is_read_by_every_reader(live: Live) -> None:
    live.dispatcher.pause = 3
    reader = TrimmingReader()
    async with live.connect() as (source, sink):
        sink.write(raw_post(CHAT, chat_body(stream=True)))
        await source.readuntil(b"\r\n\r\n")
        begun = await source.readuntil(KEEP_ALIVE_CHUNK)
        live.dispatcher.release()
        pieces = dechunk(begun + await source.readuntil(b"0\r\n\r\n"))
    assert text_of([event for piece in pieces for event in reader.feed(piece)]) == ANSWER
    assert pieces.count(KEEP_ALIVE) >= 1


async def test_a_failure_in_a_stream_is_an_error_event_and_the_end_marker(live: Live) -> None:
    live.dispatcher.script = failing
    *events, last = await live.stream_chat()
    assert text_of(events) == "Half"
    words = {"message": "the device caught fire", "type": "InternalServerError"}
    assert last == {"error": {**words, "param": None, "code": "generation_failed"}}


@pytest.mark.parametrize("path", [CHAT, "/v1/responses"])
async def test_a_failure_of_a_whole_answer_is_500(live: Live, path: str) -> None:
    live.dispatcher.script = failing
    status, reply = await live.post(path, chat_body() if path == CHAT else {"input": "Hi"})
    assert (status, reply["error"]["message"]) == (500, "the device caught fire")


async def test_a_failure_that_is_the_clients_own_doing_is_400(live: Live) -> None:
    """A grammar that took too long was answered with 500."""

    def refused(request: RowSpec) -> Iterable[RowUpdate]:
        for update in failing(request):
            yield structs.replace(update, by_client=update.error is not None)

    live.dispatcher.script = refused
    grammars = (
        {"structured_outputs": {"regex": "a{9}"}},
        {"response_format": {"type": "json_object"}},
        {"guided_choice": ["a"]},
    )
    for fields in ({}, *grammars):
        status, reply = await live.post(CHAT, chat_body(**fields))
        param, code = (next(iter(fields)), "invalid_grammar") if fields else (None, "invalid_request")
        error = reply["error"]
        assert (status, error["type"], error["param"], error["code"]) == (400, "BadRequestError", param, code)
        assert (await live.stream_chat(**fields))[-1] == reply


@pytest.mark.parametrize("stream", [False, True])
async def test_when_one_of_several_answers_fails_the_others_are_cancelled(live: Live, stream: bool) -> None:
    def first_fails(request: RowSpec) -> Iterable[RowUpdate]:
        return failing(request) if request.sampling.seed == 5 else endless(request)

    live.dispatcher.script = first_fails
    body = chat_body(n=3, seed=5, stream=stream)
    if stream:
        assert "error" in (await live.stream(CHAT, body))[-1]
    else:
        assert (await live.post(CHAT, body))[0] == 500
    assert {request.sampling.seed for request in live.dispatcher.cancelled} == {6, 7}
    assert live.dispatcher.table.requests_running == 0


async def test_an_unforeseen_failure_in_a_stream_is_logged(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    def broken(request: RowSpec) -> Iterable[RowUpdate]:
        first, *_ = answer(request)
        yield structs.replace(first, logprobs=("no logprob",))

    live.dispatcher.script = broken
    last: Any = (await live.stream_chat(logprobs=True))[-1]
    assert last["error"]["code"] == "internal_error"
    assert "no attribute" not in last["error"]["message"]
    assert "no attribute" in caplog.text


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("pause", [0, None], ids=["while waiting", "while running"])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_client_that_leaves_cancels_its_requests(live: Live, stream: bool, pause: int | None, n: int) -> None:
    live.dispatcher.pause = pause
    live.dispatcher.script = endless
    async with live.connect() as (reader, writer):
        writer.write(raw_post(CHAT, chat_body(stream=stream, n=n)))
        await live.dispatcher.until(lambda: len(live.dispatcher.submitted) == n)
        if stream:
            await reader.readuntil(b"\r\n\r\n")
    await live.dispatcher.until(lambda: len(live.dispatcher.cancelled) == n)
    assert live.dispatcher.table.requests_running == 0


def flood(request: RowSpec) -> Iterable[RowUpdate]:
    while True:
        yield RowUpdate(request.row_id, (65,), "A" * 1_000_000)


async def test_a_client_that_stops_reading_is_cut_off_alone(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    live.dispatcher.script = flood
    async with live.connect() as (_, writer):
        writer.write(raw_post(CHAT, chat_body(stream=True)))
        await live.dispatcher.until(lambda: live.dispatcher.table.requests_running == 1)
        live.dispatcher.script = answer
        assert text_of(await live.stream_chat()) == ANSWER
        await live.dispatcher.until(lambda: len(live.dispatcher.cancelled) == 1)
    assert "Traceback" not in caplog.text


async def test_old_clients_without_chunks_get_a_stream_that_ends_with_the_connection(live: Live) -> None:
    body = orjson.dumps(chat_body(stream=True))
    async with live.connect() as (reader, writer):
        writer.write(b"POST %b HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
        head, _, events = (await reader.read()).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert text_of(parse_events(events)) == ANSWER


async def test_a_thousand_clients_leave_nothing_behind(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    async def leave(turns: int) -> None:
        async with live.connect() as (_, writer):
            writer.write(raw_post(CHAT, chat_body(stream=turns % 2 == 0, n=1 + turns % 3)))
            for _ in range(turns % 37):
                await asyncio.sleep(0)

    for _ in range(20):
        with suppress(ConnectionError):
            await asyncio.gather(*(leave(turns) for turns in range(50)))
    await live.dispatcher.until(lambda: live.dispatcher.table.requests_running == 0)
    assert text_of(await live.stream_chat()) == ANSWER
    assert "Traceback" not in caplog.text
