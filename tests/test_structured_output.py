"""The official client asks a live server with a tiny random model for structured answers: whatever the model would
rather say, what comes out matches.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import jsonschema_rs
import pytest
from openai import AsyncOpenAI, OpenAI

from tests import tiny
from tests.engine.sampling.grammars import SCHEMAS, closed, text
from tests.live_server import serve_here

MODEL = "tiny"
ASKED: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Go."}], "temperature": 1}
SEEDS = range(4)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """With a context that the words about tools fit into."""
    with serve_here(tiny.build(tmp_path_factory.mktemp("models") / MODEL, context=2048)) as url:
        yield url


async def create(client: AsyncOpenAI, **fields: Any) -> Any:
    """A reply at temperature 1, or its chunks."""
    return await client.chat.completions.create(**ASKED | fields)


def bound(schema: dict[str, Any], seed: int) -> dict[str, Any]:
    """Fields of a call whose answer a schema binds."""
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    return {"response_format": form, "seed": seed}


async def ask(client: AsyncOpenAI, **fields: Any) -> str:
    """The text of a whole answer."""
    (choice,) = (await create(client, **fields)).choices
    assert choice.finish_reason == "stop"
    return str(choice.message.content)


async def stream(client: AsyncOpenAI, **fields: Any) -> str:
    """The text of a streamed answer."""
    choices = [chunk.choices[0] async for chunk in await create(client, **fields, stream=True)]
    assert choices[-1].finish_reason == "stop"
    return "".join(choice.delta.content or "" for choice in choices)


async def test_every_answer_matches_its_schema_whole_and_streamed(many: AsyncOpenAI) -> None:
    wanted = list(product(SCHEMAS.values(), SEEDS))
    whole = await asyncio.gather(*(ask(many, **bound(*one)) for one in wanted))
    streamed = await asyncio.gather(*(stream(many, **bound(*one)) for one in wanted))
    assert whole == streamed
    for (schema, _), answer in zip(wanted, whole, strict=True):
        jsonschema_rs.validate(schema, json.loads(answer), validate_formats=True)
    assert len(set(whole)) > len(SCHEMAS)  # the seeds do count


def test_json_objects_and_vllm_s_forms_match_on_completions_too(client: OpenAI) -> None:
    def complete(**extra: object) -> list[str]:
        body: dict[str, Any] = {"model": MODEL, "prompt": "One", "max_tokens": 300, "temperature": 1, "seed": 3}
        reply = client.completions.create(**body, extra_body={"n": 4, "min_tokens": 2, **extra})
        return [choice.text for choice in reply.choices if choice.finish_reason == "stop"]

    for answer in complete(response_format={"type": "json_object"}):
        assert isinstance(json.loads(answer), dict)
    assert set(complete(structured_outputs={"choice": ["alpha", "beta", "\u4e16\u754c"]})) <= {"alpha", "beta", "世界"}
    dates = complete(structured_outputs={"regex": r"\d{4}-\d{2}-\d{2}"})
    assert len(dates) == 4 and all(re.fullmatch(r"\d{4}-\d{2}-\d{2}", date) for date in dates)
    sums = complete(structured_outputs={"grammar": 'start: digit "+" digit\ndigit: /[0-9]/'})
    assert all(re.fullmatch(r"[0-9]\+[0-9]", sum_) for sum_ in sums) and sums


# Tools

CITY = closed(city=text(), days={"type": "integer", "minimum": 1, "maximum": 9})
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": CITY}},
    {"type": "function", "function": {"name": "clock"}},
]


def check_calls(calls: list[tuple[str, str]]) -> None:
    assert calls
    for name, arguments in calls:
        jsonschema_rs.validate({"weather": CITY, "clock": closed()}[name], json.loads(arguments))


@pytest.mark.parametrize("parallel", [True, False])
async def test_a_call_that_must_come_always_parses(many: AsyncOpenAI, parallel: bool) -> None:
    async def ask(seed: int) -> list[tuple[str, str]]:
        wanted = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": parallel, "seed": seed}
        (choice,) = (await create(many, **wanted, extra_body={"instruction": "Go."})).choices
        assert choice.message.content is None
        calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
        if choice.finish_reason == "length":  # of many calls the last may be cut short
            return calls[:-1]
        assert choice.finish_reason == "tool_calls"
        check_calls(calls)
        return calls

    counts = {len(calls) for calls in await asyncio.gather(*(ask(seed) for seed in range(8)))}
    assert parallel or counts == {1}


async def test_a_streamed_call_adds_up_in_the_client(many: AsyncOpenAI) -> None:
    arguments, names, ids, finish = "", [], [], None
    choice = {"type": "function", "function": {"name": "weather"}}
    async for chunk in await create(many, tools=TOOLS, tool_choice=choice, seed=1, stream=True):
        finish = chunk.choices[0].finish_reason or finish
        assert not chunk.choices[0].delta.content
        for part in chunk.choices[0].delta.tool_calls or []:
            assert part.index == 0
            arguments += part.function.arguments or ""
            names += [part.function.name] if part.function.name else []
            ids += [part.id] if part.id else []
    assert (finish, names, len(ids)) == ("tool_calls", ["weather"], 1)
    check_calls([("weather", arguments)])
