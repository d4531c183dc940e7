"""Streams over raw sockets: framing, keep-alives, failures, and clients that leave or stand still."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson
import pytest
from msgspec import structs

from engine.messages import RowSpec, RowUpdate
from scheduler.request import Times
from server.api.output.sse import KEEP_ALIVE, EventStream
from server.api.register import REGISTER
from server.config import ServeConfig
from tests.server.api.trimming_reader import TrimmingReader
from tests.server.fakes import ANSWER, answer, endless, failing
from tests.server.live import CHAT, Live, bearer, chat_body, dechunk, live_server, parse_events, raw_post, text_of

KEEP_ALIVE_CHUNK = b"%x\r\n%b\r\n" % (len(KEEP_ALIVE), KEEP_ALIVE)


@pytest.fixture
def limits(quick_looks: None) -> ServeConfig:
    return ServeConfig(sse_keep_alive_interval=0.02, send_timeout=0.3)


@asynccontextmanager
async def raw(live: Live, path: str = CHAT, **fields: object) -> AsyncIterator[asyncio.StreamReader]:
    """The chunks of a stream that has begun."""
    body = chat_body(stream=True, **fields) if path == CHAT else {"stream": True, **fields}
    async with live.connect() as (reader, writer):
        writer.write(raw_post(path, body))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Transfer-Encoding: chunked\r\n" in head
        yield reader


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n0\r\n\r\n")


async def test_every_event_is_written_whole_and_every_character_arrives_whole(live: Live) -> None:
    async with raw(live) as reader:
        chunks = dechunk(await rest_of(reader))
    assert all(chunk.endswith(b"\n\n") for chunk in chunks)
    pieces = [event["choices"][0]["delta"]["content"] for event in parse_events(b"".join(chunks))]
    assert [piece for piece in pieces if piece] == list(ANSWER)


@pytest.mark.parametrize(
    ("path", "fields", "told"),
    [
        (CHAT, {}, len(ANSWER) - 1),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 99}, len(ANSWER) - 1),
        (CHAT, {"stream_options": {"continuous_usage_stats": True}}, 0),
    ],
)
async def test_frames_that_are_written_past_the_task_are_those_that_the_task_would_write(
    live: Live, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, object], told: int
) -> None:
    """All but the first and the last, unless each tells more than its text; byte for byte, but for ids and times."""
    past, send_now = list[bytes](), EventStream.send_now

    def note(stream: EventStream, *frame: bytes) -> bool:
        past.append(b"".join(frame))
        return send_now(stream, *frame)

    async def written() -> list[bytes]:
        async with raw(live, path, **fields) as reader:
            chunks = dechunk(await rest_of(reader))
        return [re.sub(rb'"(id|created)":("[^"]*"|\d+)', rb"", one) for one in chunks if one != KEEP_ALIVE]

    with monkeypatch.context() as patch:
        patch.setattr(EventStream, "send_now", lambda stream, *frame: False)
        by_task = await written()
    monkeypatch.setattr(EventStream, "send_now", note)
    assert await written() == by_task
    assert len(past) == told


async def test_tokens_that_several_choices_get_in_one_step_leave_in_one_write(live: Live) -> None:
    async with raw(live, n=8) as reader:
        chunks = [chunk for chunk in dechunk(await rest_of(reader)) if chunk != KEEP_ALIVE]
    assert chunks[0].count(b"data: ") == 8
    events = parse_events(b"".join(chunks))
    assert all(len(event["choices"]) == 1 for event in events)
    assert [text_of(events, index) for index in range(8)] == [ANSWER] * 8


@pytest.mark.parametrize("begun", [False, True], ids=["while it waits", "when it falls silent"])
async def test_a_silent_stream_gets_blank_lines_behind_which_any_reader_reads_on(live: Live, begun: bool) -> None:
    """Comments went out here: a reader that trims what arrives lost every event behind one."""
    if begun:
        live.dispatcher.pause = 3
    else:
        live.dispatcher.crowd(waiting=2)
    reader = TrimmingReader()
    async with raw(live) as source:
        first = await source.readuntil(KEEP_ALIVE_CHUNK)
        assert begun == (first != KEEP_ALIVE_CHUNK)
        for _ in range(9):
            assert await source.readuntil(KEEP_ALIVE_CHUNK) == KEEP_ALIVE_CHUNK
        live.dispatcher.release()
        pieces = dechunk(first + await rest_of(source))
    assert text_of(parse_events(b"".join(piece for piece in pieces if piece != KEEP_ALIVE))) == ANSWER
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
    async with raw(live, path, **fields) as reader:
        waited = [await reader.readuntil(sign) for _ in range(5)]
        live.dispatcher.release()
        frames = re.findall(rb"data: ({.*})\n\n", b"".join([*waited, await rest_of(reader)]))
    events = [orjson.loads(frame) for frame in frames]
    numbers = [event["sequence_number"] for event in events if "sequence_number" in event]
    assert numbers == list(range(len(numbers)))
    assert events[-1]["type"] in ("response.completed", "message_stop")


async def break_off(live: Live, **headers: str) -> Times:
    """Of a call that waits, and whose client leaves."""
    async with live.streaming(CHAT, chat_body(), headers):
        request = live.dispatcher.submitted[-1]
    while len(live.app[REGISTER]):
        await asyncio.sleep(0)
    return request.times


@pytest.mark.parametrize("name", ["x-client-request-id", "Idempotency-Key"])
async def test_a_call_that_comes_back_has_its_old_place_for_a_minute(live: Live, name: str) -> None:
    live.dispatcher.crowd(waiting=0)
    # The third keeps the place of the first, as the second was broken off again.
    first, other, again, third = [await break_off(live, **{name: value}) for value in "abaa"]
    assert third.arrival == again.arrival == first.arrival < other.arrival < again.came
    live.dispatcher.skip(61)
    late, nameless = await break_off(live, **{name: "a"}), await break_off(live)
    assert (late.arrival, nameless.arrival) == (late.came, nameless.came)
    live.dispatcher.release()
    for _ in range(2):  # the first has the old place
        await live.obtain(CHAT, chat_body(), **{name: "a"})
    last = live.dispatcher.submitted[-1].times
    assert last.arrival == last.came, "nothing was broken off"


async def test_a_place_is_its_keys_own() -> None:
    async with live_server(keys=["mine", "other"]) as live:
        live.dispatcher.crowd(waiting=0)
        keys = ("mine", "other", "mine")
        mine, other, again = [await break_off(live, **{"x-client-request-id": "a"}, **bearer(key)) for key in keys]
        assert mine.arrival == again.arrival < other.arrival == other.came
        live.dispatcher.release()


async def test_a_failure_in_a_stream_is_an_error_event_and_the_end_marker(live: Live) -> None:
    live.dispatcher.script = failing
    *events, last = await live.stream_chat()
    assert text_of(events) == "Half"
    words = {"message": "the device caught fire", "type": "InternalServerError"}
    assert last == {"error": {**words, "param": None, "code": "generation_failed"}}


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat_body()), ("/v1/responses", {"input": "Hi"})])
async def test_a_failure_of_a_whole_answer_is_500(live: Live, path: str, body: dict[str, object]) -> None:
    live.dispatcher.script = failing
    assert (await live.refused(path, body, 500))["message"] == "the device caught fire"


async def test_a_failure_that_is_the_clients_own_doing_is_400(live: Live) -> None:
    """A grammar that took too long was answered with 500."""

    def refused(request: RowSpec) -> Iterable[RowUpdate]:
        for update in failing(request):
            yield structs.replace(update, by_client=update.error is not None)

    live.dispatcher.script = refused
    grammars = {
        "structured_outputs": {"regex": "a{9}"},
        "response_format": {"type": "json_object"},
        "guided_choice": ["a"],
    }
    for name, value in (None, None), *grammars.items():
        fields = {} if name is None else {name: value}
        error = await live.refused(CHAT, chat_body(**fields), code="invalid_grammar" if name else "invalid_request")
        assert (error["type"], error["param"]) == ("BadRequestError", name)
        assert (await live.stream_chat(**fields))[-1] == {"error": error}


@pytest.mark.parametrize("stream", [False, True])
async def test_when_one_of_several_answers_fails_the_others_are_cancelled(live: Live, stream: bool) -> None:
    def first_fails(request: RowSpec) -> Iterable[RowUpdate]:
        return failing(request) if request.sampling.seed == 5 else endless(request)

    live.dispatcher.script = first_fails
    if stream:
        assert "error" in (await live.stream_chat(n=3, seed=5))[-1]
    else:
        await live.refused(CHAT, chat_body(n=3, seed=5), 500)
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
    head, events = await live.exchange(raw_post(CHAT, chat_body(stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0"))
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
