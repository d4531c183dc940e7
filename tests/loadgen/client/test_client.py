"""The HTTP client against servers that behave, and against all the ways in which they do not."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import aiohttp
import orjson
import pytest

from loadgen.bench.measures import METRICS, measure
from loadgen.client.client import Client, ServerError, Target, connect
from loadgen.client.request import CHAT, PreparedRequest, RequestOutcome
from tests.loadgen import scripted as script
from tests.loadgen.scripted import DONE, HEAD, Answer, chunk, finish, plain, said, scripted, stream, usage

SHOT = PreparedRequest(7, CHAT, b"{}", label="task")
A = chunk(said("a"))
WHOLE = stream(script.role(), said("Hi"), said(" you"), finish(), usage(5, 3))


@asynccontextmanager
async def talking(
    *answers: Answer, timeout: float = 30.0, headers: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[script.Scripted, Client]]:
    async with (
        scripted(*answers) as server,
        connect(Target(server.url, headers or {}, timeout), id_prefix="t-") as client,
    ):
        yield server, client


async def send(*answers: Answer, timeout: float = 30.0) -> RequestOutcome:
    """The outcome of one request that meets these answers."""
    async with talking(*answers, timeout=timeout) as (server, client):
        return await client.send(SHOT, server.clock)


def why(outcome: RequestOutcome) -> tuple[str, str]:
    assert outcome.failure is not None
    return outcome.status, outcome.failure.kind


async def test_a_whole_answer() -> None:
    outcome = await send(WHOLE)
    assert (outcome.status, outcome.text) == ("completed", "Hi you")
    assert (outcome.request.label, outcome.request.index) == ("task", 7)
    assert (outcome.prompt_tokens, outcome.output_tokens, outcome.counted) == (5, 3, True)
    assert outcome.failure is None


async def test_without_usage_chunks_are_counted_and_it_says_so() -> None:
    outcome = await send(stream(script.role(), said("a"), said("b"), finish()))
    assert (outcome.status, outcome.output_tokens, outcome.counted) == ("completed", 2, False)


async def test_what_is_sent() -> None:
    async with talking(WHOLE, headers={"Authorization": "Bearer k"}) as (server, client):
        await client.send(PreparedRequest(3, CHAT, b'{"model":"m"}'), server.clock)
    head, body = server.requests[0]
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    lines = head.lower().split(b"\r\n")
    assert {b"x-request-id: t-3", b"authorization: bearer k", b"content-type: application/json"} <= set(lines)
    assert body == b'{"model":"m"}'


async def test_a_connection_is_used_again_after_a_whole_answer() -> None:
    ports: set[int] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ports.add(writer.get_extra_info("peername")[1])
        while await reader.read(65536):
            writer.write(b"".join(WHOLE.pieces))

    async with script.listening(serve) as url, connect(Target(url)) as client:
        for _ in range(3):
            assert (await client.send(SHOT, time.perf_counter)).completed
    assert len(ports) == 1


async def test_figures_of_scripted_streams_by_hand() -> None:
    """Three answers whose every byte has its time: all figures follow by arithmetic."""
    last = chunk(said("c") + finish() + usage(10, 5) + DONE)
    first = Answer([HEAD + chunk(script.role()), A, chunk(said("b")), last], times=(0.5, 1.0, 1.5, 3.0))
    second = Answer([HEAD + A, chunk(said("b") + usage(20, 2) + DONE)], times=(4.0, 4.5))
    third = Answer([HEAD + A, chunk(usage(30, 1) + DONE)], times=(6.0, 7.0))
    shut = chunk(b"")
    answers = [Answer([*one.pieces[:-1], one.pieces[-1] + shut], times=one.times) for one in (first, second, third)]
    outcomes = []
    async with talking(*answers) as (server, client):
        for scheduled, sent in ((0.0, 0.0), (1.0, 3.5), (5.0, 5.0)):
            server.clock.now = sent
            outcomes.append(await client.send(replace(SHOT, due=scheduled), server.clock))
    figures = measure(outcomes, 8.0, [100.0], goals={"ttft": 1.0, "jct": 3.0})
    counts = ("completed", "total_input_tokens", "total_output_tokens")
    assert [figures[name] for name in counts] == [3, 60, 8]
    expected = {
        **{"ttft": [1.0, 0.5, 1.0], "tpot": [(3 - 1) / 4, (4.5 - 4) / 1], "itl": [0.5, 1.5, 0.5]},
        **{"e2el": [3.0, 1.0, 1.0], "jct": [3.0, 3.5, 1.0], "normalized_latency": [3.0 / 5, 3.5 / 2, 1.0]},
        **{"client_queue_time": [0.0, 2.5, 0.0], "scheduled_ttft": [1.0, 3.0, 1.0]},
    }
    for name, samples in expected.items():
        unit = METRICS[name].unit
        key, scale = f"{name}_{unit}", {"ms": 1000, "s": 1}[unit]
        mean, longest = (value * scale for value in (sum(samples) / len(samples), max(samples)))
        assert figures[f"mean_{key}"] == pytest.approx(mean), name
        assert figures[f"p100_{key}"] == pytest.approx(longest, rel=1e-3), name
    assert figures["mean_queue_time_ms"] is None
    assert figures["request_goodput"] == 2 / 8  # the second was due long before it went out
    rates = ("request_throughput", "output_throughput", "total_token_throughput")
    assert [figures[name] for name in rates] == [3 / 8, 1, 68 / 8]


BROKEN_OFF = [[], [HEAD], [HEAD + A], [HEAD, A, chunk(said("b")[:20])], [HEAD + b"ff\r\nda"]]


@pytest.mark.parametrize("then", ["close", "abort"])
@pytest.mark.parametrize("pieces", BROKEN_OFF)
async def test_a_server_that_closes_early(pieces: list[bytes], then: str) -> None:
    outcome = await send(Answer(pieces, "close" if then == "close" else "abort"))
    assert why(outcome) == ("failed", "closed")


async def test_a_stream_that_ends_well_formed_but_in_the_middle() -> None:
    outcome = await send(Answer([HEAD, chunk(said("a")), chunk(b'data: {"choi') + chunk(b"")]))
    assert (why(outcome), outcome.output_tokens) == (("failed", "closed"), 1)


@pytest.mark.parametrize("pieces", [[], [HEAD], [HEAD + chunk(said("a"))], [HEAD + chunk(said("a")[:9])]])
async def test_a_server_that_stalls(pieces: list[bytes]) -> None:
    outcome = await send(Answer(pieces, "hang"), timeout=0.05)
    assert why(outcome) == ("failed", "timeout")
    assert outcome.failure is not None and outcome.failure.message == "nothing came for 0.05 s (--timeout)"


REFUSALS = [("429 Too Many Requests", "rejected"), ("503 Service Unavailable", "rejected"), ("404 Not Found", "failed")]


@pytest.mark.parametrize(("status", "told"), REFUSALS)
async def test_a_refusal_is_no_failure_and_nothing_is_tried_again(status: str, told: str) -> None:
    answer = plain(status, b'{"error":{"message":"the queue is full"}}', "Retry-After: 2")
    async with talking(answer, WHOLE) as (server, client):
        outcome = await client.send(SHOT, server.clock)
        assert why(outcome) == (told, "http")
        assert outcome.failure is not None and outcome.failure.message == f"status {status[:3]}: the queue is full"
        assert len(server.requests) == 1


NO_STREAMS = [
    plain("200 OK", b'{"choices":[]}'),
    Answer([b"SSH-2.0-OpenSSH_9.2\r\n"], "close"),
    Answer([HEAD + b"no chunk\r\n"], "close"),
    Answer([HEAD + chunk(b"data: {\n\n")], "hang"),
]


@pytest.mark.parametrize("answer", NO_STREAMS)
async def test_what_is_no_stream_of_events(answer: Answer) -> None:
    outcome = await send(answer)
    assert outcome.status == "failed"
    assert outcome.failure is not None and outcome.failure.kind in ("protocol", "closed")


async def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    async with connect(Target(url)) as client:
        assert why(await client.send(SHOT, time.perf_counter)) == ("failed", "connection")
        with pytest.raises(ServerError, match="no server answers at .*start one with"):
            await client.model()


async def test_a_client_that_leaves_is_seen_by_the_server() -> None:
    request = PreparedRequest(0, CHAT, b"{}", cancel_after=0.3)
    async with talking(Answer([HEAD, chunk(said("a"))], "hang")) as (server, client):
        outcome = await client.send(request, server.clock)
        assert (outcome.status, outcome.failure) == ("cancelled", None)
        await server.left.wait()


async def test_what_comes_after_the_end_marker_changes_nothing() -> None:
    outcome = await send(Answer([HEAD, chunk(said("a") + usage(1, 1) + DONE + said("b"))], "close"))
    assert (outcome.status, outcome.text, outcome.output_tokens) == ("completed", "a", 1)


class Lingering:
    """Stands in for a session, its response and its body: whole at once, and then open without an end."""

    status = 200
    content_type = "text/event-stream"

    @property
    def content(self) -> Lingering:
        return self

    @asynccontextmanager
    async def post(self, url: str, **request: object) -> AsyncIterator[Lingering]:
        yield self

    async def iter_any(self) -> AsyncIterator[bytes]:
        yield said("a") + DONE

    async def readany(self) -> bytes:
        await asyncio.Event().wait()
        return b""


async def test_leaving_after_the_end_marker_is_too_late() -> None:
    client = Client(Target("http://h"), cast(aiohttp.ClientSession, Lingering()))
    outcome = await client.send(PreparedRequest(0, CHAT, b"{}", cancel_after=0.01), lambda: 1.0)
    assert (outcome.status, outcome.token_times) == ("completed", (1.0,))


async def test_the_model_is_the_first_that_the_server_lists() -> None:
    listed = orjson.dumps({"object": "list", "data": [{"id": "org/model"}, {"id": "other"}]})
    async with talking(plain("200 OK", listed)) as (server, client):
        assert await client.model() == "org/model"
    assert server.requests[0][0].startswith(b"GET /v1/models ")


NO_MODELS = [
    (plain("200 OK", b'{"data":[]}'), "lists no model: name one with --model"),
    (plain("200 OK", b"hello"), "lists no model: name one with --model"),
    (plain("401 Unauthorized", b'{"error":"Unauthorized"}'), "status 401: Unauthorized; give a key with --api-key$"),
    (plain("404 Not Found", b'{"error":"nothing"}'), "status 404: nothing; name a --model$"),
]


@pytest.mark.parametrize(("answer", "message"), NO_MODELS)
async def test_a_server_without_models(answer: Answer, message: str) -> None:
    async with talking(answer) as (_, client):
        with pytest.raises(ServerError, match=message):
            await client.model()


@pytest.mark.parametrize("base", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_a_base_url_may_end_with_the_version(base: str) -> None:
    assert Target(base).url(CHAT) == "http://h:1/v1/chat/completions"
