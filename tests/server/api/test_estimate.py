"""Estimates of calls: before they are made, in answers, in headers; and only for clients that ask."""

from collections.abc import Mapping
from typing import Any

import pytest

from engine.sampling.params import SamplingParams
from scheduler.length.features import LengthQuery
from scheduler.length.learning import LengthHistory
from scheduler.length.prediction import Prediction, Source
from scheduler.request import Request
from server.keys import Keyring
from server.lengths.lengths import Revise
from tests.server.live import CHAT, Live, bearer, chat_body, live_server

KEY = "a key of one client"
ESTIMATE = "/v1/estimate"


async def ask(live: Live, path: str, body: dict[str, Any], **headers: str) -> tuple[int, Any, Mapping[str, str]]:
    """Status, text or JSON, and headers of an answer."""
    reply = await live.ask("POST", path, body, **headers)
    return reply.status, reply.body.decode() if body.get("stream") else reply.json, reply.headers


async def measured(live: Live) -> None:
    """Let the server see how fast it is."""
    for _ in range(3):
        await live.chat()


BODIES = [chat_body(max_tokens=8, prompt=None, input=None), {"prompt": "user:Hi\nassistant:"}, {"input": "Hi"}]


@pytest.mark.parametrize("body", BODIES, ids=["chat", "completion", "response"])
async def test_the_body_of_each_generating_call_is_estimated_and_not_queued(live: Live, body: dict[str, Any]) -> None:
    await measured(live)
    submitted = len(live.dispatcher.submitted)
    told = await live.obtain(ESTIMATE, body)
    place = {"prompt_tokens": len("user:Hi\nassistant:"), "cached_tokens": 0, "place": 1, "expected_wait_s": 0.0}
    assert {name: told[name] for name in place} == place
    end = told["expected_completion_s"]
    assert 0 <= end["low"] <= end["median"] <= end["high"] and end["high"] > 0
    assert len(live.dispatcher.submitted) == submitted and live.dispatcher.table.requests_waiting == 0


async def test_an_estimate_counts_what_waits_and_all_answers_that_are_asked_for(live: Live) -> None:
    idle = await live.obtain(ESTIMATE, {"prompt": ["one", "four"], "n": 2, "max_tokens": 8})
    assert idle["prompt_tokens"] == len("one" + "four")
    assert idle["predicted_tokens"] is None and idle["expected_completion_s"] is None
    await measured(live)
    live.dispatcher.crowd(waiting=5)
    assert (await live.obtain(ESTIMATE, chat_body()))["place"] == 6
    live.dispatcher.release()


async def test_an_estimate_is_given_while_the_queue_is_full() -> None:
    async with live_server(max_num_queued_reqs=0) as live:
        live.dispatcher.crowd(waiting=2)
        await live.refused(CHAT, chat_body(), 429)
        await live.obtain(ESTIMATE, chat_body())
        live.dispatcher.release()


REFUSED = [
    *(({}, "messages"), ({"messages": []}, "messages"), ({"prompt": "x", "max_tokens": 0}, "max_tokens")),
    ({"messages": None}, "messages"),
    (chat_body(prompt="x"), "messages"),
    ({"input": "x", "prompt": "x"}, "messages"),
    ({"input": "x" * 5000}, "input"),
    ({"input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": 5}}}, "text"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
]


@pytest.mark.parametrize(("body", "param"), REFUSED)
async def test_what_a_call_is_refused_for_the_estimate_is_too(live: Live, body: dict[str, Any], param: str) -> None:
    told = await live.refused(ESTIMATE, body, param=param)
    if "input" in body and param != "messages":
        assert await live.refused("/v1/responses", body) == told


async def test_an_estimate_draws_no_seed() -> None:
    seeds = iter(range(100))
    async with live_server(next_seed=lambda: next(seeds)) as live:
        await live.obtain(ESTIMATE, chat_body(n=3))
    assert next(seeds) == 0


class AskedHistory(LengthHistory):
    """Lengths by the history alone, as a server without a forest predicts them."""

    async def predict(self, query: LengthQuery, sampling: SamplingParams) -> Prediction | None:
        length = self.expect(query.scope, query.instruction)
        return None if length is None else Prediction(length, Source.HISTORY)

    def note(self, request: Request, query: LengthQuery, prediction: Prediction | None, revise: Revise) -> None:
        self.add(query.scope, query.instruction, 91)


async def test_a_key_or_a_salt_is_told_nothing_of_the_answers_that_others_had() -> None:
    """With one table of medians for all keys, whoever guessed a system prompt saw that it had been sent: 91 for 20."""
    other = "a key of another client"
    plain = chat_body(max_tokens=200)
    secret = plain | {"messages": [{"role": "system", "content": "The secret."}, {"role": "user", "content": "Hi"}]}
    async with live_server(keys=[KEY, other], lengths=AskedHistory()) as live:

        async def told(body: dict[str, Any], key: str) -> Any:
            return (await live.obtain(ESTIMATE, body, **bearer(key)))["predicted_tokens"]

        await live.obtain(CHAT, secret, **bearer(KEY))
        assert (await told(secret, KEY))["median"] == 91
        assert await told(secret, other) is await told(plain, other) is None
        assert await told(secret | {"cache_salt": "pepper"}, KEY) is None


async def test_answers_tell_what_was_expected_to_those_who_ask(live: Live) -> None:
    async def asked() -> Any:
        return (await live.obtain(CHAT, chat_body(), x_lengthwise_estimate="1"))["metrics"]["estimate"]

    await measured(live)
    _, plain, headers = await ask(live, CHAT, chat_body())
    assert "estimate" not in plain["metrics"]
    assert headers["x-lengthwise-place"] == "1" and headers["x-lengthwise-expected-wait-ms"] == "0"
    told = await asked()
    assert told["expected_completion_s"]["median"] > 0 and told["run_by"] is None
    program = live.dispatcher.submitted[-1].program
    assert program is not None
    program.kind.errors.extend([0.0] * 64)
    program.kind.seconds = 1000.0
    told = await asked()
    assert told["run_by"] > told["by"]
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    _, text, headers = await ask(live, CHAT, chat_body(**options), x_lengthwise_estimate="1")
    assert '"estimate":{"prompt_tokens":' in text and "x-lengthwise-place" in headers
    await live.refused(CHAT, chat_body(), param="x-lengthwise-estimate", x_lengthwise_estimate="yes")


async def test_a_request_under_way_tells_what_was_expected_when_it_came(live: Live) -> None:
    await measured(live)
    live.dispatcher.crowd(waiting=2)
    call = await live.begin(CHAT, chat_body(), X_Request_Id="mine")
    assert (await live.get("/v1/requests/mine")).json["estimate"]["place"] == 3
    live.dispatcher.release()
    await call


async def test_a_client_is_its_key_or_its_address_and_who_it_says_it_is(live: Live) -> None:
    for fields in ({}, {"user": "ann"}, {"user": "bob"}):
        await live.chat(**fields)
    address, ann, bob = (request.client for request in live.dispatcher.submitted)
    assert address.startswith("address-") and ann.startswith(f"{address}/user-") and ann != bob
    assert "ann" not in ann and "127.0.0.1" not in address
    async with live_server(keys=[KEY]) as locked:
        await locked.obtain(CHAT, chat_body(user="ann"), **bearer(KEY))
    assert [locked.dispatcher.submitted[0].client] == list(Keyring([KEY]).shares)


async def test_a_large_body_is_bounded_and_told_of_as_that_of_the_call() -> None:
    async with live_server(max_body_bytes=2**22) as live:
        for path in (CHAT, ESTIMATE):
            await live.refused(path, chat_body(more=[[] for _ in range(2**17)]), code="too_many_values")
            await live.obtain(path, chat_body(more=1))
