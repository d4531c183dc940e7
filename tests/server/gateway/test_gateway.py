"""A gateway before backends: bytes unchanged, calls in turn, and none lost of which no byte was sent."""

import asyncio
import random
import re
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import count, product
from typing import Any

import orjson
import pytest
from aiohttp import web

from engine.messages import ExecutorHealth
from models.errors import UserError
from server.composition.gateway import check_backends
from server.config import GatewayConfig
from server.gateway.meta import read_meta
from server.gateway.sending import RETRIES
from server.gateway.slots import InferredSlots
from tests.server.gateway.backends import Backend, Gateway, chat, crowded, event, gateway, until
from tests.server.gateway.fake_backend import Engine, listening
from tests.server.gateway.test_hostile import EVENTS, Hostile, answer, plain
from tests.server.live import bearer

WHOLE = b"".join(map(event, range(5))) + b"data: [DONE]\n\n"


async def test_bytes_are_passed_on_as_they_came_both_ways() -> None:
    backend = Backend(waits=False)
    async with gateway(backend) as gate:
        body = b'{"messages":  [{"content": "\\u00e9"}], "max_tokens": 5, "stream": true, "their_own": [1.0]}'
        answer = await gate.call("POST", "/v1/chat/completions?x=%20", data=body, headers={"x-mine": "1"})
        assert (answer.status, answer.body) == (200, WHOLE)
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert backend.bodies == [body]
        assert backend.seen[0]["x-mine"] == "1" and "x-lengthwise-place" in answer.headers
        status, whole = await gate.ask(stream=False)
        assert (status, whole) == (200, b'{"id": "theirs", "usage": {"completion_tokens": 5}}')
        assert gate.table.requests_running == 0


async def test_errors_of_the_backend_are_its_own() -> None:
    """A refusal of a call whose answer was asked for as a stream used to be asked again at once, against its will."""
    backend = Backend()
    async with gateway(backend) as gate:
        assert await gate.ask(bad=422) == (422, b'{"error": {"message": "theirs"}}')
        assert await gate.ask(seed=429, stream=False) == (429, b'{"error": {"message": "theirs"}}')
        assert len(backend.bodies) == 2
        status, told = await gate.ask(priority="high")
        assert status == 400 and b"priority" in told


@pytest.mark.parametrize(("choices", "said", "reason"), [(1, False, "length"), (2, False, "stop"), (2, True, "length")])
async def test_an_answer_that_max_tokens_cut_is_no_natural_end(choices: int, said: bool, reason: str) -> None:
    """Else lengths are learned as the limits of those who asked."""
    async with gateway(Backend(waits=False, usage=said)) as gate:
        assert (await gate.ask(n=choices))[0] == 200
        told = (await gate.read("/metrics")).decode()
        assert re.findall(r'^vllm:request_success_total\{.*finished_reason="(\w+)".*\} 1.0$', told, re.M) == [reason]


ANSWERS = [
    ({"n": 4}, 4),
    ({"prompt": ["a", "b", "c"]}, 3),
    ({"prompt": [[1, 2], [3]], "n": 2}, 4),
    ({"prompt": [1, 2, 3]}, 1),
    ({"prompt": "a"}, 1),
]


@pytest.mark.parametrize(("fields", "answers"), ANSWERS)
async def test_a_length_is_of_one_answer_however_many_a_call_asks_for(fields: dict[str, Any], answers: int) -> None:
    """Four choices were predicted at 16 times one's length, and three prompts at one's."""
    asked = {"max_tokens": 20, **({} if "prompt" in fields else chat()), **fields}
    async with gateway(Backend(waits=False)) as gate:
        for _ in range(3):
            told = await gate.post("/v1/estimate", asked)
            assert told.json["predicted_tokens"]["median"] <= 20 * answers
            assert (await gate.ask(n=4, max_tokens=20))[0] == 200
        assert read_meta(orjson.dumps(asked)).answers == answers


def test_a_length_that_is_sure_is_known() -> None:
    sure: dict[str, object] = {"ignore_eos": True, "max_tokens": 200}
    for fields, least in ((sure, 200), (sure | {"stop": "x", "min_tokens": 3}, 3), ({"ignore_eos": "yes"}, 0)):
        assert read_meta(orjson.dumps(chat(**fields))).least == least
    assert read_meta(orjson.dumps(chat(min_tokens=-1))).least == 0


async def test_other_paths_are_passed_on_and_the_gateway_tells_of_itself() -> None:
    async with gateway(Backend()) as gate:
        assert await gate.get("/v1/models") == {"data": [{"id": "their-model"}]}
        assert (await gate.get("/health"))["requests_waiting"] == 0
        assert (await gate.get("/"))["model"] == gate.service.name
        assert b"lengthwise:executor_slots" in await gate.read("/metrics")
        assert "/v1/chat/completions" in (await gate.get("/openapi.json"))["paths"]


@pytest.mark.parametrize("truth", [1, 3, 4, 32])
async def test_slots_are_within_one_of_the_truth_in_a_second(truth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In steps of 5 ms of a clock of their own, each of which begins when all that came of the one before has
    happened.
    """
    engine, calls, clock = Engine(truth, 0.0), 3 * truth, count(0.0, 0.005)
    now = [next(clock)]
    monkeypatch.setattr("server.composition.gateway.InferredSlots", partial(InferredSlots, clock=lambda: now[0]))
    tokens = random.Random(truth).randint(5, 40)
    async with listening(engine) as url, gateway(url) as gate:

        async def ask(stream: bool) -> None:
            while True:
                assert (await gate.ask(max_tokens=tokens, stream=stream))[0] == 200

        def settled() -> bool:
            held = len(engine.waiting) + len(engine.running)
            begun = sum(row.made > 0 for row in engine.running)
            counted = (gate.table.requests_running, gate.table.requests_waiting) == (begun, calls - begun)
            return counted and held >= min(calls, gate.worker.info.max_rows)  # more just after too many were sent

        asking = [asyncio.ensure_future(ask(stream=number % 2 == 0)) for number in range(calls)]
        for step in range(200):
            await until(settled)
            assert step < 100 or truth <= gate.worker.info.max_rows <= truth + 2 + truth // 2
            now[0] = next(clock)
            engine.step_rows()
        for call in asking:
            call.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def test_a_client_that_leaves_frees_its_place_everywhere() -> None:
    async with crowded(3) as (backend, gate, asked):
        for call in asked:
            call.cancel()
        await until(lambda: backend.open == 0)
        await until(lambda: gate.under_way == 0)
        backend.go_on.set()
        assert (await gate.ask())[1] == WHOLE


async def test_a_first_token_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.gateway.backend.PERIOD", 1000.0)
    backend = Backend()
    async with gateway(backend) as gate:
        (asked,) = gate.begin(1)
        await until(lambda: backend.running == 1)
        (call,) = gate.worker.requests.values()
        await until(lambda: call.generated == 1)
        backend.go_on.set()
        assert await asked == (200, WHOLE)


async def test_a_client_that_reads_nothing_holds_its_backend_back() -> None:
    backend = Backend(padding=b":" + b"x" * 100_000 + b"\n\n", waits=False)
    async with gateway(backend) as gate:
        answer = await gate.client.post("/v1/chat/completions", json=chat(max_tokens=400))
        before = -1
        while backend.made > before:
            before = backend.made
            await asyncio.sleep(0.2)
        assert before < 300  # what sockets hold
        rest = b"".join(event(index) + backend.padding for index in range(1, 400))
        assert await answer.read() == event(0) + rest + b"data: [DONE]\n\n"


class Bursting(Backend):
    async def _generate(self, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(event(0))
        await self.go_on.wait()
        assert request.transport is not None
        request.transport.write(b"".join(b"%x\r\n%b\r\n" % (len(event(place)), event(place)) for place in (1, 2, 3)))
        return response


async def test_events_that_come_together_are_sent_on_together() -> None:
    """Each took a write of its own, as did headers and an answer's end."""
    backend = Bursting()
    async with gateway(backend) as gate:
        async with gate.client.post("/v1/chat/completions", json=chat(max_tokens=4)) as answer:
            pieces = [(await answer.content.readchunk())[0]]
            backend.go_on.set()
            pieces += [piece async for piece, _ in answer.content.iter_chunks() if piece]
        assert pieces == [event(0), event(1) + event(2) + event(3)]


async def ask_each(gate: Gateway, backends: Sequence[Backend], field: str, values: Sequence[object]) -> None:
    """A call with each value, the first at the first backend, which goes on from then on."""
    asked = []
    for value, backend in zip(values, backends, strict=True):
        asked += gate.begin(1, **{field: value})
        await until(lambda backend=backend: backend.running == 1)
    for backend in backends:
        backend.go_on.set()
    await asyncio.gather(*asked)


async def test_calls_of_one_conversation_go_to_the_backend_that_knows_it() -> None:
    backends = Backend(), Backend()
    async with gateway(*backends, slots=2) as gate:
        await ask_each(gate, backends, "prompt_cache_key", "ab")
        for other in ("b", "a", "b", ["not a text"]):
            assert await gate.ask(prompt_cache_key=other) == (200, WHOLE)
        kept = [[orjson.loads(body)["prompt_cache_key"] for body in one.bodies] for one in backends]
        assert kept == [["a", "a", ["not a text"]], ["b", "b", "b"]]


async def test_turns_of_a_run_go_to_the_backend_that_read_them_without_a_key() -> None:
    backends = Backend(), Backend()
    async with gateway(*backends, slots=2) as gate:
        chats = [[{"role": "user", "content": name}] for name in "ab"]
        await ask_each(gate, backends, "messages", chats)
        for place in (1, 0, 1, 1):
            chats[place] = [*chats[place], {"role": "assistant", "content": "Ok."}, {"role": "user", "content": "On."}]
            assert await gate.ask(messages=chats[place]) == (200, WHOLE)
        begun = [{orjson.loads(body)["messages"][0]["content"] for body in one.bodies} for one in backends]
        assert begun == [{"a"}, {"b"}] and len(backends[1].bodies) == 4


async def test_a_call_waits_until_its_only_backend_is_there_again() -> None:
    backend = Backend(waits=False)
    async with gateway(backend) as gate:
        backend.refuses = True
        (asked,) = gate.begin(1)
        await until(lambda: backend.bodies and not gate.service.dispatcher.alive)
        assert gate.table.requests_waiting == 1
        backend.refuses = False
        assert await asked == (200, WHOLE)


async def test_a_deadline_ends_a_call_that_waits() -> None:
    async with crowded(1) as (backend, gate, (first,)):
        status, told = await gate.ask(deadline_ms=50)
        assert status == 504 and b"deadline_exceeded" in told and b'"param":"deadline_ms"' in told
        backend.go_on.set()
        assert await first == (200, WHOLE)


async def test_a_call_that_never_reaches_a_backend_or_is_refused_by_it_uses_no_quota_up() -> None:
    async with gateway(Backend(waits=False), requests_per_minute=2) as gate:
        gate.measure()
        for fields in ({"promise": {"within_ms": 0.001}}, {"deadline_ms": 0.001}):
            for stream in (True, False):
                assert (await gate.ask(**fields, stream=stream))[0] in (503, 504)
            early = await gate.post("/v1/chat/completions", chat(**fields), **{"X-Lengthwise-Progress": "1"})
            assert b"deadline_exceeded" in early.body or early.status == 503
        assert {(await gate.ask(bad=status))[0] for status in (400, 404, 422, 429)} == {400, 404, 422, 429}
        assert [(await gate.ask())[0] for _ in range(3)] == [200, 200, 429]


OTHERS = ("PUT", "PATCH", "OPTIONS", "TRACE", "PROPFIND")


@pytest.mark.parametrize("keys", [(), ("a", "b")])
async def test_another_method_is_told_which_ones_there_are(keys: tuple[str, ...]) -> None:
    """GET /v1/estimate, and later DELETE /v1/requests/ID, were said to be no paths of the gateway."""
    others: dict[tuple[int, str | None], Iterable[tuple[str, str]]] = {
        (405, "POST"): [
            *product(["GET"], ("estimate", "embeddings", "chat/completions", "requests/a/cancel", "responses")),
            *product(OTHERS, ("chat/completions", "embeddings", "responses")),
        ],
        (405, "GET,HEAD"): [
            *product(["POST"], ("requests", "models", "requests/a")),
            *product(["DELETE", "PATCH"], ["requests/a"]),
            ("PUT", "models/org/name"),
        ],
        (405, "DELETE,GET,HEAD"): [("PUT", "files/a")],
        (404, None): [("DELETE", "requests/a/b"), *product(OTHERS, ("x", "requests/a/b"))],
    }
    async with gateway(Backend(), keys=keys) as gate:
        gate.client.headers.update(bearer("a"))
        for told, calls in others.items():
            for method, path in calls:
                answer = await gate.call(method, f"/v1/{path}")
                assert (answer.status, answer.headers.get("Allow")) == told, (method, path)


NAMED = [
    ("/v1/chat/completions", b'{"id": "theirs", "choices": [{"delta": {"content": "t"}}]}'),
    ("/v1/messages", b'{"type": "message_start", "message": {"id": "theirs"}}'),
    ("/v1/responses", b'{"type": "response.created", "response": {"id": "theirs"}}'),
    ("/v1/chat/completions", b""),
]


@pytest.mark.parametrize(("path", "first"), NAMED)
async def test_a_call_is_found_by_its_answers_id(path: str, first: bytes) -> None:
    kind = answer(b"data: %b\n\n" % first + EVENTS) if first else plain(b'{"id": "theirs"}')
    async with gateway(Hostile(kind), keys=("a", "b")) as gate:
        async with gate.client.post(path, json=chat(x=1), headers=bearer("a")) as asked:
            await asked.read()
        for key, status in (("a", 200), ("b", 404)):
            async with gate.client.get("/v1/requests/theirs", headers=bearer(key)) as told:
                assert told.status == status
                assert key == "b" or (await told.json())["answer_id"] == "theirs"


async def test_a_call_that_is_put_back_waits_as_if_it_had_never_run() -> None:
    """It was told as running, with a place in line and the tokens of an answer that nobody gets."""
    backend = Backend(break_off=True, usage=True)
    async with gateway(backend) as gate:
        (asked,) = gate.begin(1, stream=False)
        await until(lambda: backend.bodies and not gate.service.dispatcher.alive)
        (call,) = (await gate.get("/v1/requests"))["data"]
        assert (call["state"], call["place"], call["generated_tokens"]) == ("waiting", 1, 0)
        assert call["choices"][0]["state"] == "waiting"
        backend.break_off = False
        backend.go_on.set()
        assert (await asked)[0] == 200
        (call,) = (await gate.get("/v1/requests"))["data"]
        assert (call["state"], call["generated_tokens"]) == ("finished", 5)


@pytest.mark.parametrize(("stream", "statuses"), [(True, {200, 499}), (False, {499})])
async def test_a_call_can_be_cancelled_by_its_id(stream: bool, statuses: set[int]) -> None:
    """A whole answer before it comes."""
    async with crowded(2, stream=stream) as (backend, gate, asked):
        for call in (await gate.get("/v1/requests"))["data"]:
            await gate.post(f"/v1/requests/{call['id']}/cancel")
        assert {status for status, _ in await asyncio.gather(*asked)} == statuses
        await until(lambda: backend.open == 0)


async def test_a_call_that_kills_every_backend_is_given_up() -> None:
    backend = Backend()
    async with gateway(backend) as gate:
        backend.refuses = True
        (asked,) = gate.begin(1)
        for _ in range(RETRIES):
            await until(lambda: gate.worker.fault is not None)
            gate.service.dispatcher.receive(ExecutorHealth(0, None))  # it is there again, and gets the call again
        assert (await asked)[0] == 502
        assert len(backend.bodies) == RETRIES + 1


async def test_bodies_of_calls_that_wait_have_a_bound() -> None:
    backend = Backend(slots=1)
    async with gateway(backend, slots=1, max_body_bytes=1024) as gate:
        asked = gate.begin(19, filler="x" * 800)
        await until(lambda: gate.table.requests_waiting >= 16)
        assert (await gate.ask(filler="x" * 800))[0] == 429
        backend.go_on.set()
        assert {status for status, _ in await asyncio.gather(*asked)} <= {200, 429}


async def test_what_ends_the_gateway_ends_its_calls() -> None:
    async with crowded(2) as (backend, gate, asked):
        gate.service.dispatcher.abort_all("the server is shutting down")
        assert {status for status, _ in await asyncio.gather(*asked)} == {200, 503}
        await until(lambda: backend.open == 0)


IMPOSSIBLE = [
    ({}, "--backend"),
    *(({"backend": (f"{url}/v1",)}, "no http") for url in ("localhost:1", "http://h:99999", "http://u:p@h", "http://")),
    ({"backend": ("http://a/v1=/no/such/file",)}, "http://a/v1=/no/such/file cannot be read"),
    ({"backend": ("http://a/v1",), "backend_api_key": "k", "pass_client_keys": True}, "--pass-client-keys"),
    ({"backend": ("http://a/v1", "http://b/v1", "http://a/")}, "http://a/ is given twice"),
    ({"backend": ("http://localhost:1/v1", "http://127.0.0.1:1/v1")}, "given twice"),
    ({"backend": ("http://localhost:8000/v1",)}, "give it another --port"),
    ({"backend": ("http://10.0.0.1:9/v1",), "host": "10.0.0.1", "port": 9}, "give it another --port"),
    ({"backend": ("http://a/v1",), "strategy": "srpt"}, "pauses requests or closes batches"),
    ({"backend": ("http://a/v1",), "strategy": "scls"}, "pauses requests or closes batches"),
    ({"backend": ("http://a/v1",), "strategy": "sjf-oracle-continuous"}, "true lengths"),
]


@pytest.mark.parametrize(("settings", "said"), IMPOSSIBLE)
def test_what_no_gateway_can_do_is_refused_at_the_start(settings: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_backends(GatewayConfig(**settings))  # type: ignore[arg-type]


async def test_lengths_are_learned_from_what_is_served() -> None:
    backend = Backend(waits=False)
    async with gateway(backend, strategy="fair") as gate:
        for tokens in (3, 9, 3):
            await gate.ask(max_tokens=tokens)
        listed = (await gate.get("/v1/requests"))["data"]
        assert [one["generated_tokens"] for one in listed] == [3, 9, 3]
        assert b"vllm:generation_tokens_total{" in await gate.read("/metrics")


async def test_a_whole_answer_is_asked_as_a_stream_and_counts_as_a_slot() -> None:
    backend = Backend(slots=1, usage=True)
    async with gateway(backend) as gate:
        asked = gate.begin(3, stream=False)
        await until(lambda: backend.running == 1 and gate.table.requests_running == 1)
        assert gate.worker.info.max_rows == 2
        backend.go_on.set()
        for status, told in await asyncio.gather(*asked):
            answer = orjson.loads(told)
            assert status == 200 and answer["usage"] == {"completion_tokens": 5}
            assert answer["choices"][0]["message"] == {"role": "assistant", "content": "t0t1t2t3t4"}
        assert all(orjson.loads(body)["stream"] for body in backend.bodies) and len(backend.bodies) == 3
        assert [one["generated_tokens"] for one in (await gate.get("/v1/requests"))["data"]] == [5] * 3
        assert re.search(rb"vllm:generation_tokens_total\{.*\} 15\.0", await gate.read("/metrics"))


async def test_a_backend_that_tells_no_usage_in_streams_is_asked_for_whole_answers() -> None:
    backend = Backend(waits=False)
    async with gateway(backend) as gate:
        for _ in range(3):
            assert (await gate.ask(stream=False))[1] == b'{"id": "theirs", "usage": {"completion_tokens": 5}}'
        assert [orjson.loads(body)["stream"] for body in backend.bodies] == [True, False, False, False]


async def test_a_whole_answer_that_broke_off_is_asked_of_another_backend() -> None:
    breaks, good = Backend(break_off=True), Backend(usage=True, waits=False)
    async with gateway(breaks, good) as gate:
        answers = await asyncio.gather(*(gate.ask(stream=False) for _ in range(4)))
        assert {status for status, _ in answers} == {200} and len(good.bodies) == 4 and breaks.bodies
