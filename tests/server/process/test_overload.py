"""Refusals under overload, and their answers: over HTTP, with a queue that the test fills."""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from server.api.errors import busy
from server.api.input import body as body_module
from server.api.ticket import PENDING
from server.config import ServeConfig
from tests.server.fakes import ANSWER, FakeText
from tests.server.live import CHAT, Live, chat_body, live_server, text_of


@pytest.fixture
def limits() -> ServeConfig:
    return ServeConfig(max_num_queued_reqs=2, max_num_queued_tokens=300, max_body_bytes=100_000)


async def refusal(live: Live, **fields: object) -> tuple[int, Any, Mapping[str, str]]:
    reply = await live.ask("POST", CHAT, chat_body(**fields))
    return reply.status, reply.json.get("error"), reply.headers


async def _let_in(live: Live, **fields: object) -> tuple[int, Any, Mapping[str, str]]:
    """An answer that may go on as soon as its request is in the queue."""
    call = asyncio.create_task(refusal(live, **fields))
    await live.dispatcher.until(lambda: bool(live.dispatcher.submitted))
    live.dispatcher.release()
    return await call


async def test_when_enough_requests_wait_one_more_is_told_when_to_come_again(live: Live) -> None:
    live.dispatcher.crowd(waiting=2)
    live.dispatcher.waits.retry_after = lambda: 7.2  # type: ignore[method-assign]
    status, error, headers = await refusal(live)
    assert (status, error["type"], error["code"]) == (429, "RateLimitError", "queue_full")
    assert "--max-num-queued-reqs" in error["message"]
    assert (headers["Retry-After"], headers["retry-after-ms"]) == ("8", "7200")
    live.dispatcher.cancel(next(iter(live.dispatcher.waiting)))
    assert (await _let_in(live))[0] == 200


@pytest.mark.parametrize(("seconds", "told"), [(0.0, ("1", "1")), (1.0, ("1", "1000")), (1.001, ("2", "1001"))])
def test_the_time_to_come_again_is_at_least_a_second_in_whole_ones(seconds: float, told: tuple[str, str]) -> None:
    headers = busy("later", "queue_full", seconds).headers
    assert (headers["Retry-After"], headers["retry-after-ms"]) == told


async def test_who_would_not_wait_is_let_in_where_none_may_wait() -> None:
    async with live_server(max_num_queued_reqs=0) as live:
        assert (await refusal(live))[0] == 200
        live.dispatcher.crowd(waiting=0)
        assert (await refusal(live))[0] == 429


@pytest.mark.parametrize(("waiting", "tokens"), [(2, 2), (1, 300)], ids=["requests", "tokens"])
async def test_a_full_queue_refuses_before_the_body_has_come(live: Live, waiting: int, tokens: int) -> None:
    live.dispatcher.crowd(waiting=waiting, tokens=tokens)
    async with live.connect() as (reader, writer):
        writer.write(b"POST %b HTTP/1.1\r\nHost: test\r\nContent-Length: 5000\r\n\r\n" % CHAT.encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 429 ")


async def test_a_body_that_is_never_welcome_is_told_so_even_then(live: Live) -> None:
    live.dispatcher.crowd(waiting=2)
    assert (await live.post(CHAT, b" " * 200_000))[0] == 413


async def test_other_endpoints_answer_while_the_queue_is_full(live: Live) -> None:
    live.dispatcher.crowd(waiting=2)
    for path in ("/v1/models", "/health/ready", "/"):
        assert (await live.get(path)).status == 200


class SlowText(FakeText):
    """A tokenizer that waits until it may go on."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert self.go.wait(20)
        return super().encode(text, add_special_tokens=add_special_tokens)


async def test_a_refusal_does_not_wait_for_the_tokenizer_whose_line_counts_as_the_queue(limits: ServeConfig) -> None:
    text = SlowText()
    async with live_server(limits, text=text) as live:
        live.dispatcher.crowd(waiting=0)
        threaded = {"chat_template_kwargs": {"a": "b"}}  # short prompts without any are encoded at once
        calls = [asyncio.create_task(refusal(live, max_tokens=5, **threaded)) for _ in range(2)]
        while live.app[PENDING].arrived < 2:
            await asyncio.sleep(0)
        await live.refused(CHAT, chat_body(), 429, code="queue_full")
        text.go.set()
        live.dispatcher.release()
        assert [status for status, _, _ in await asyncio.gather(*calls)] == [200, 200]
        assert live.app[PENDING].arrived == 0
        assert (await refusal(live))[0] == 200


async def test_calls_that_fail_before_the_queue_no_longer_count(live: Live) -> None:
    for _ in range(3):
        await live.refused(CHAT, chat_body(temperature=-1))
    assert live.app[PENDING].arrived == 0


@pytest.mark.parametrize(("waiting", "max_tokens", "status"), [(200, 50, 200), (200, 90, 429), (0, 230, 200)])
async def test_many_tokens_wait_only_where_they_fit(live: Live, waiting: int, max_tokens: int, status: int) -> None:
    live.dispatcher.crowd(waiting=1 if waiting else 0, tokens=waiting)
    got, error, _ = await (_let_in if status == 200 else refusal)(live, max_tokens=max_tokens)
    assert got == status
    assert error is None or error["code"] == "queue_full"


async def test_a_deadline_that_cannot_be_met_beside_others_is_429_and_alone_504(live: Live) -> None:
    assert (await refusal(live, deadline_ms=0.001))[0] == 504
    live.dispatcher.crowd(waiting=1)
    live.dispatcher.waits.retry_after = lambda: 3.0  # type: ignore[method-assign]
    status, error, headers = await refusal(live, deadline_ms=0.001)
    assert (status, error["code"], headers["Retry-After"]) == (429, "deadline_unreachable", "3")
    assert error["param"] == "deadline_ms"


async def test_a_deadline_that_passes_in_the_queue_is_504(live: Live) -> None:
    live.dispatcher.pause = 0
    whole = asyncio.create_task(refusal(live, deadline_ms=60_000, max_tokens=9))
    streamed = asyncio.create_task(live.stream_chat(deadline_ms=60_000, max_tokens=9))
    await live.dispatcher.until(lambda: len(live.dispatcher.submitted) == 2)
    live.dispatcher.skip(60.0)
    status, error, _ = await whole
    assert (status, error["type"], error["code"]) == (504, "DeadlineExceededError", "deadline_exceeded")
    (event,) = await streamed
    assert (event["error"]["code"], event["error"]["param"]) == ("deadline_exceeded", error["param"])
    assert error["param"] == "deadline_ms"


HALF_A_BODY = b"POST %b HTTP/1.1\r\nHost: test\r\nContent-Length: 90000\r\n\r\n{" % CHAT.encode()


async def test_bodies_that_are_only_announced_keep_nobody_out(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte each of 64 large bodies made every larger call 429 for as long as a body may take."""
    monkeypatch.setattr(body_module, "BODIES", 1)
    monkeypatch.setattr(body_module, "BODIES_OF_ONE", 1)
    async with live.connect() as (_, first), live.connect() as (_, second):
        for writer in (first, second):
            writer.write(HALF_A_BODY)
        while live.app[PENDING].body_bytes.total() < 2:
            await asyncio.sleep(0)
        assert text_of(await live.stream_chat(instruction=" " * 60_000)) == ANSWER
    while live.app[PENDING].body_bytes:
        await asyncio.sleep(0)


@pytest.mark.parametrize("bound", ["BODIES", "BODIES_OF_ONE"])
async def test_only_so_many_bytes_of_bodies_are_held(live: Live, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(body_module, bound, 1)
    async with live.connect() as (_, writer):
        writer.write(HALF_A_BODY + b" " * 60_000)
        while live.app[PENDING].body_bytes.total() < 60_000:
            await asyncio.sleep(0)
        await live.refused(CHAT, chat_body(instruction=" " * 60_000), 429, code="too_many_large_bodies")
        assert text_of(await live.stream_chat()) == ANSWER
    while live.app[PENDING].body_bytes:
        await asyncio.sleep(0)


async def test_a_call_counts_as_the_answers_that_it_asks_for(live: Live) -> None:
    """Two calls might wait, and 2,013 answers waited."""
    live.dispatcher.crowd(waiting=1)
    await live.refused(CHAT, chat_body(n=2, max_tokens=1), 429, code="queue_full")
    assert live.app[PENDING].arrived == 0
    live.dispatcher.cancel(next(iter(live.dispatcher.waiting)))
    live.dispatcher.submitted.clear()
    assert (await _let_in(live, n=3, max_tokens=1))[0] == 200
