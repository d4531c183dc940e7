"""An answer begins with the first event that brings something; until then its call may wait at the backend."""

import asyncio
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from aiohttp import web

from server.gateway.events import brings
from server.gateway.probe import WAITING, _sum, _tokens
from tests.server.gateway.backends import Backend, event, gateway, until

EMPTY: tuple[Any, ...] = (
    {"choices": [{"delta": {"role": "assistant"}}]},
    {"choices": [{"delta": {"role": "assistant", "content": None, "tool_calls": []}, "finish_reason": None}]},
    {"choices": [{"delta": {"content": ""}}, {"delta": {}}]},
    {"choices": [{"text": "", "finish_reason": None}]},
    {"choices": [], "prompt_filter_results": [1]},
    {"type": "response.created", "response": {"output": []}},
    {"type": "response.in_progress"},
    {"type": "message_start", "message": {"content": []}},
    {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    {"type": "response.reasoning_part.added", "part": {"text": ""}},
    {"type": "response.web_search_call.in_progress"},
    {"type": "response.output_text.delta", "delta": ""},
    {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": ""}},
    {"object": "chat.completion.chunk", "choices": None},
    {"choices": [{"delta": None}, None]},
    {},
)
FULL: tuple[Any, ...] = (
    {"choices": [{"delta": {"content": "a"}}]},
    {"choices": [{"delta": {"role": "assistant", "reasoning_content": "a"}}]},
    {"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]},
    {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    {"choices": [{"text": "a"}]},
    {"type": "response.output_text.delta", "delta": "a"},
    {"type": "content_block_delta", "delta": {"text": "a"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    {"type": "response.completed"},
    {"type": "error"},
    {"error": {"message": "no"}},
    ["none of theirs"],
)


@pytest.mark.parametrize(("events", "full"), [(EMPTY, False), (FULL, True)])
def test_events_without_content_begin_no_answer(events: tuple[Any, ...], full: bool) -> None:
    assert [brings(b"data: " + orjson.dumps(one)) for one in events] == [full] * len(events)


def test_comments_and_names_bring_nothing_and_an_end_does() -> None:
    lines = (b": keepalive 1/1", b"event: response.created", b"", b"data:", b"data: \r", b"data: [DONE]")
    assert [*map(brings, lines)] == [False] * 5 + [True]


@dataclass(eq=False)
class Eager(Backend):
    """Sends what brings nothing before a call has a slot."""

    before: bytes = b""
    after: bytes = b""

    def app(self) -> web.Application:
        app = super().app()
        for path in ("/v1/completions", "/v1/responses", "/v1/messages"):
            app.router.add_post(path, self.answer)
        return app

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(self.before)
        self.open += 1
        async with self._room:
            self.running += 1
            await response.write(self.after)
            await self.go_on.wait()
            self.running -= 1
        self.open -= 1
        return response


BEFORE = [
    ("chat/completions", EMPTY[0], FULL[0]),
    ("completions", EMPTY[3], FULL[4]),
    ("responses", EMPTY[5], FULL[5]),
    ("messages", EMPTY[7], FULL[6]),
]


@pytest.mark.parametrize(("path", "before", "after"), BEFORE)
async def test_what_comes_before_a_slot_is_passed_on_and_begins_nothing(path: str, before: Any, after: Any) -> None:
    """Everything used to be sent to such a backend at once, where no order acts."""
    first, second = (b"data: %b\n\n" % orjson.dumps(one) for one in (before, after))
    backend = Eager(slots=2, before=first + b": ping\n\n", after=second)
    async with gateway(backend) as gate:

        async def ask() -> bytes:
            body = {"messages": [], "stream": True, "max_tokens": 5}
            async with gate.client.post(f"/v1/{path}", json=body) as answer:
                assert await answer.content.readuntil(b"ping\n\n")
                return await answer.read()

        asked = [asyncio.ensure_future(ask()) for _ in range(12)]
        await until(lambda: backend.running == 2 and gate.table.requests_running == 2)
        assert backend.open <= 4
        backend.go_on.set()
        assert {*await asyncio.gather(*asked)} == {second}


async def test_only_answers_that_are_none_of_errors_begin() -> None:
    backend = Backend(slots=1)
    async with gateway(backend) as gate:
        for _ in range(12):
            assert (await gate.ask(bad=400))[0] == 400
        assert gate.worker.info.max_rows == 1


async def test_whole_answers_and_other_paths_take_slots() -> None:
    """One client's calls of another field used to be sent all at once, and another's waited behind them."""
    backend = Backend(slots=3)
    async with gateway(backend) as gate:
        first = gate.begin(3)  # as many as have slots, so that none waits, and no clock is asked whether one did
        await until(lambda: backend.running == 3)
        backend.go_on.set()
        await asyncio.gather(*first)
        backend.go_on.clear()
        whole = gate.begin(30, stream=False, their_own=1)
        await until(lambda: backend.running == 3 and gate.table.requests_waiting >= 24)
        assert backend.open <= 6
        backend.go_on.set()
        assert {status for status, _ in await asyncio.gather(*whole)} == {200}


async def test_a_backend_that_cuts_an_answer_off_for_the_next_is_sent_one_at_a_time() -> None:
    """As llama-cpp-python does: twelve calls at once used to be eleven broken answers, each with two ends."""

    class Cutting(Backend):
        turn = asyncio.Lock()

        async def answer(self, request: web.Request) -> web.StreamResponse:
            await request.read()
            self.open += 1
            mine = self.most = self.most + 1
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            async with self.turn:
                await response.write(event(0))
                await until(lambda: self.most > mine or self.go_on.is_set())
                if self.most == mine:
                    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
                    await response.write(b"data: %b\n\n" % orjson.dumps(end))
                await response.write(b"data: [DONE]\n\n")
            if self.most != mine:
                self._cut(request)
            return response

    backend = Cutting()
    async with gateway(backend) as gate:
        asked = gate.begin(12)
        done, going = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(going, timeout=0.2)
        assert len(done) == 1 and backend.most == 2
        backend.go_on.set()
        told = [answer for _, answer in await asyncio.gather(*asked)]
        assert [answer.count(b"[DONE]") for answer in told] == [1] * 12
        assert sum(b"stop" in answer for answer in told) == 11 and gate.worker.info.max_rows == 1


async def test_a_backend_whose_streams_never_say_that_they_end_gets_many_calls() -> None:
    backend = Backend(slots=3)
    async with gateway(backend) as gate:
        asked = gate.begin(2)
        await until(lambda: backend.running == 2)
        backend.go_on.set()
        await asyncio.gather(*asked)  # the first of them seems cut off, until the last ends likewise
        assert gate.worker.info.max_rows == 4


def test_room_is_what_an_engine_says_of_it_and_else_its_pages() -> None:
    assert _tokens(b'block_size="16",kv_cache_size_tokens="528416",num_gpu_blocks="131072"') == 528416
    assert _tokens(b'block_size="16",num_gpu_blocks="10"') == 160


WAITS = [
    (b"vllm:num_requests_waiting 3.0", 3),
    (b'vllm:num_requests_waiting{engine="0"} 3.0\nvllm:num_requests_waiting{engine="1"} 2.0\n', 5),
    (b'sglang:num_queue_reqs{model_name="m"} 4\n', 4),
    (b"llamacpp:requests_deferred 1\n", 1),
    (b"vllm:num_requests_waiting 1e999", None),
    (b"vllm:num_requests_waiting NaN", None),
    (b"vllm:num_requests_waiting_by_reason 3.0", None),
    (b"# HELP vllm:num_requests_waiting 3", None),
]


@pytest.mark.parametrize(("told", "waiting"), WAITS)
def test_how_many_wait_is_read_of_each_engine(told: bytes, waiting: int | None) -> None:
    assert _sum(WAITING, told) == waiting
