"""How a body's fields become the parameters of an answer, and requests that bring its length (design 3.1)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.sampling.params import SamplingParams
from models.network.generation_config import SamplingDefaults
from server.api.input.prompts import Prompt
from server.api.input.sampling import list_sampling
from server.api.input.schema import ChatBody, CompletionBody, Message
from server.api.served_model import ServedModel, seed_source
from server.config import ServeConfig
from tests.server.live import Live, changed, chat_body, live_server

MESSAGES = [Message("user", "Hi")]


def sampling_params(body: ChatBody | CompletionBody, model: ServedModel, prompt_length: int) -> SamplingParams:
    """The parameters of the last answer that a body asks for."""
    return list_sampling(body, [Prompt((1,) * prompt_length)], model)[-1][-1]


MEANINGS = [
    ({}, {"temperature": 0.7, "top_k": 40, "top_p": 1.0, "min_p": 0.0}),  # as the model recommends
    ({"temperature": 0, "top_k": 0}, {"temperature": 0, "top_k": 0}),  # what is said wins even when it is zero
    ({"top_k": -1}, {"top_k": 0}),
    ({"top_p": 0}, {"temperature": 0}),
    ({"top_p": 0.01}, {"temperature": 0.7}),
    ({"stop": "end"}, {"stop": ("end",)}),
    ({"logprobs": True}, {"logprobs": 0}),
    ({"logprobs": False}, {"logprobs": None}),
]


@pytest.mark.parametrize(("asked", "meant"), MEANINGS)
async def test_fields_mean_what_they_do_elsewhere(live: Live, asked: dict[str, Any], meant: dict[str, object]) -> None:
    sampling = sampling_params(ChatBody(messages=MESSAGES, **asked), live.service.model, 10)
    assert {name: getattr(sampling, name) for name in meant} == meant


async def test_as_many_stop_texts_are_taken_as_any_client_sends(live: Live) -> None:
    stops = [f"<stop {place}>" for place in range(257)]
    for path, field in ((CHAT, "stop"), (COMPLETIONS, "stop"), ("/v1/messages", "stop_sequences")):
        body = {"prompt": "Hi", "max_tokens": 5} if path == COMPLETIONS else chat_body(max_tokens=5)
        await live.obtain(path, body | {field: stops[1:]})
        assert len(live.dispatcher.submitted[-1].sampling.stop) == 256
        assert (await live.post(path, body | {field: stops}))[0] == 400


async def test_every_field_reaches_the_engine(live: Live) -> None:
    as_given: dict[str, Any] = {
        **{"max_tokens": 9, "top_p": 0.5, "min_p": 0.1, "min_tokens": 2, "ignore_eos": True},
        **{
            "presence_penalty": 1,
            "frequency_penalty": -1,
            "repetition_penalty": 1.5,
            "include_stop_str_in_output": True,
        },
    }
    lists: dict[str, Any] = {"logit_bias": {"3": -2, "4": 2.5}, "stop": ["a", "b"], "stop_token_ids": [5]}
    body = CompletionBody(prompt="Hi", **as_given, **lists, logprobs=3, echo=True, prompt_logprobs=1)
    sampling = sampling_params(body, live.service.model, 10)
    assert {name: getattr(sampling, name) for name in as_given} == as_given
    assert sampling.logit_bias == ((3, -2.0), (4, 2.5))
    assert (sampling.stop, sampling.stop_token_ids) == (("a", "b"), (5,))
    assert (sampling.logprobs, sampling.prompt_logprobs) == (3, 3)


async def test_nul_is_a_character_like_others(live: Live) -> None:
    """Random prompts of benchmarks hold it, and tokenizers encode it."""
    await live.chat(messages=[{"role": "user", "content": "a\0b"}], stop="a\0")
    await live.complete(prompt=["a\0", "\0"])
    asked = live.dispatcher.submitted
    assert [0 in request.prompt for request in asked] == [True] * 3
    assert asked[0].sampling.stop == ("a\0",)
    reply = await live.obtain("/v1/responses", {"instructions": "\0", "input": "a\0", "store": False})
    status, reply = await live.post("/tokenize", {"prompt": "a\0"})
    assert (status, reply["tokens"]) == (200, [97, 0])


SAID = [
    ({}, 20),
    ({"max_tokens": 200}, 200),
    ({"min_tokens": 30}, 30),  # what a request says outweighs what it leaves out
    ({"replay_tokens": 40}, 40),
]


@pytest.mark.parametrize(("fields", "expected"), SAID)
async def test_the_default_gives_way_to_what_a_request_says(live: Live, fields: dict[str, Any], expected: int) -> None:
    model = changed(live.service, {"max_tokens": 20, "allow_replay": True}).model
    assert sampling_params(ChatBody(messages=MESSAGES, **fields), model, 10).max_tokens == expected


async def test_the_servers_default_is_bounded_by_the_context(live: Live) -> None:
    model = changed(live.service, {"max_tokens": 1000}).model
    assert sampling_params(ChatBody(messages=MESSAGES), model, 10).max_tokens == model.context_length - 10


CEILINGS = [
    (ChatBody(messages=MESSAGES), 12),
    (ChatBody(messages=MESSAGES, max_tokens=200), 12),  # as in vLLM, what a request asks for is cut too
    (ChatBody(messages=MESSAGES, max_tokens=5), 5),
    (CompletionBody(prompt="Hi"), 12),
    (CompletionBody(prompt="Hi", echo=True, max_tokens=0), 1),
]


@pytest.mark.parametrize(("body", "expected"), CEILINGS)
async def test_no_answer_exceeds_max_new_tokens(live: Live, body: ChatBody | CompletionBody, expected: int) -> None:
    model = changed(live.service, {"sampling": SamplingDefaults(max_new_tokens=12), "max_tokens": 20}).model
    assert sampling_params(body, model, 10).max_tokens == expected


@pytest.mark.parametrize(("seed", "choice", "expected"), [(5, 2, 7), (-1, 0, 2**64 - 1), (2**64 - 1, 1, 0)])
async def test_seeds_of_choices_follow_on_within_64_bits(live: Live, seed: int, choice: int, expected: int) -> None:
    model = changed(live.service, {"next_seed": lambda: seed}).model
    for given in (None, seed) if seed < 2**63 else (None,):
        body = ChatBody(messages=MESSAGES, n=choice + 1, seed=given)
        assert sampling_params(body, model, 10).seed == expected


def test_a_servers_seed_makes_the_seeds_of_its_answers_repeatable() -> None:
    first, second, other = seed_source(1), seed_source(1), seed_source(2)
    row = [first() for _ in range(5)]
    assert [second() for _ in range(5)] == row
    assert other() not in row
    assert seed_source(None)() != seed_source(None)()


ROOT = Path(__file__).parents[4]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture
async def replaying(limits: ServeConfig) -> AsyncIterator[Live]:
    """A server that was started with --allow-replay."""
    async with live_server(limits, allow_replay=True) as live:
        yield live


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, chat_body(replay_tokens=5)), (COMPLETIONS, {"prompt": "Hi", "replay_tokens": 5})]
)
async def test_a_length_is_refused_where_nothing_is_replayed(live: Live, path: str, body: dict[str, object]) -> None:
    status, reply = await live.post(path, body)
    assert (status, reply["error"]["param"], reply["error"]["code"]) == (400, "replay_tokens", "unsupported")
    assert "--allow-replay" in reply["error"]["message"]
    assert live.dispatcher.submitted == []


async def test_a_length_of_null_is_none(live: Live) -> None:
    await live.chat(replay_tokens=None)
    assert live.dispatcher.submitted[0].sampling.replay_tokens is None


async def test_a_length_reaches_the_engine_from_both_endpoints_and_for_every_choice(replaying: Live) -> None:
    await replaying.chat(replay_tokens=5, max_tokens=40)
    await replaying.complete(prompt="Hi", replay_tokens=6, n=2)
    sent = [request.sampling for request in replaying.dispatcher.submitted]
    assert [each.replay_tokens for each in sent] == [5, 6, 6]
    assert [each.max_tokens for each in sent] == [40, 16, 16]  # the length tells the scheduler no bound


IMPOSSIBLE = [
    *(({"replay_tokens": one}, "replay_tokens", "invalid_value") for one in (0, -1, 1.5, "5")),
    ({"replay_tokens": 2**40}, "replay_tokens", "context_length_exceeded"),
    ({"replay_tokens": 255}, "replay_tokens", "context_length_exceeded"),
    ({"replay_tokens": 3, "min_tokens": 4}, "min_tokens", "invalid_request"),
]


@pytest.mark.parametrize(("fields", "param", "code"), IMPOSSIBLE)
async def test_odd_lengths_are_refused(replaying: Live, fields: dict[str, object], param: str, code: str) -> None:
    status, reply = await replaying.post(COMPLETIONS, {"prompt": "Hi", **fields})
    assert (status, reply["error"]["param"], reply["error"]["code"]) == (400, param, code)
    assert replaying.dispatcher.submitted == []


async def test_the_longest_length_that_fits_the_context_is_taken(replaying: Live) -> None:
    body = ChatBody(messages=MESSAGES, replay_tokens=246)
    assert sampling_params(body, replaying.service.model, 10).replay_tokens == 246


async def test_a_length_beyond_max_tokens_is_taken_and_cut_there(replaying: Live) -> None:
    sampling = sampling_params(CompletionBody(prompt="Hi", replay_tokens=50, max_tokens=9), replaying.service.model, 2)
    assert (sampling.replay_tokens, sampling.max_tokens) == (50, 9)


def test_no_decision_of_the_scheduler_can_see_a_length_but_an_oracles() -> None:
    files = [file for file in (ROOT / "scheduler").rglob("*.py") if "oracle" not in file.name]
    assert len(files) > 5
    assert [file.name for file in files if "replay_tokens" in file.read_text(encoding="utf-8")] == []
