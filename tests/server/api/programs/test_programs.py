"""Programs of others at their defaults: three turns with a tool, and one more of the user's, each answered whole."""

import json
from collections.abc import Iterable
from typing import Any

import orjson
import pytest

from engine.messages import RowSpec, RowUpdate
from server.api.input.tools import CALL_TAIL, OPEN, RESULT_OPEN, call_head
from tests.server.api.programs.agents import CODING_AGENTS, SDKS
from tests.server.api.programs.shapes import CHATS, PICTURE, RESPONSES, Call, Shape
from tests.server.api.programs.without_tools import CALLS_WITHOUT_TOOLS
from tests.server.api.tools.test_tools import assembled
from tests.server.fakes import ANSWER, END, say
from tests.server.live import Live, prompt_of

AGENTS = {**CODING_AGENTS, **SDKS}
CONTEXT = 8192  # more than any prompt here, and less than the most tokens that programs ask for


@pytest.mark.parametrize("name", AGENTS)
async def test_an_agent_of_others_goes_through_its_turns(live: Live, name: str) -> None:
    """Second and third turns were refused for what stood in the history, first ones for how much they might say."""
    shape, history = AGENTS[name], [*AGENTS[name].history]
    live.dispatcher.script = script_of(shape)
    for tool, arguments, told in shape.calls:
        call, _, _ = await ask(live, shape, history)
        assert call is not None and (call.name, orjson.loads(call.arguments)) == (tool, arguments)
        history += shape.write(call, told)
    for _ in range(2):
        call, said, item = await ask(live, shape, history)
        assert (call, said) == (None, ANSWER)
        history += shape.close(said, item)
    check_prompt(shape, prompt_of(live))


def script_of(shape: Shape) -> Any:
    """Call the tools, by how many results are there, then answer."""

    called = [call_head(tool) + json.dumps(arguments) + CALL_TAIL for tool, arguments, _ in shape.calls]

    def script(row: RowSpec) -> Iterable[RowUpdate]:
        results = bytes(one for one in row.prompt if one != END).decode().count(f"{RESULT_OPEN}\n")
        return say([*called, ANSWER][results], row)

    return script


def check_prompt(shape: Shape, prompt: str) -> None:
    """Assert that the model was told all that was said: calls, results, and the answer."""
    assert prompt.count(f"{OPEN}\n") == len(shape.calls) + 1  # and once in the words about tools
    assert ANSWER in prompt and PICTURE not in prompt
    places = [prompt.index(told) for _, _, told in shape.calls if isinstance(told, str)]
    assert places == sorted(places)


async def ask(live: Live, shape: Shape, history: list[Any]) -> tuple[Call | None, str, str]:
    """The call of a tool, the text, and the item's id, of an answer that must be whole."""
    body = {**shape.body, shape.key: history}
    if shape.path == CHATS:
        return await ask_chat(live, shape, body)
    events = await live.stream_named(shape.path, body, shape.headers)
    if shape.path == RESPONSES:
        return read_response(events[-1])
    return read_message(events)


async def ask_chat(live: Live, shape: Shape, body: dict[str, Any]) -> tuple[Call | None, str, str]:
    if body.get("stream"):
        events = await live.stream(CHATS, body, shape.headers)
        used = body.get("stream_options") is not None
        message = assembled(events[:-1] if used else events)
        assert not used or (events[-1]["choices"] == [] and events[-1]["usage"]["total_tokens"] > 0)
    else:
        message = (await live.chat(**body))["choices"][0]["message"]
    for called in message.get("tool_calls") or ():
        return Call(called["id"], None, called["function"]["name"], called["function"]["arguments"]), "", ""
    return None, message["content"], ""


def read_response(event: dict[str, Any]) -> tuple[Call | None, str, str]:
    assert event["type"] == "response.completed"
    (item,) = event["response"]["output"]
    if item["type"] == "function_call":
        return Call(item["call_id"], item["id"], item["name"], item["arguments"]), "", ""
    return None, item["content"][0]["text"], item["id"]


def read_message(events: list[dict[str, Any]]) -> tuple[Call | None, str, str]:
    assert events[-1]["type"] == "message_stop"
    (begun,) = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    if begun["type"] == "tool_use":
        arguments = "".join(delta["partial_json"] for delta in deltas)
        return Call(begun["id"], None, begun["name"], arguments), "", ""
    return None, "".join(delta["text"] for delta in deltas), ""


@pytest.mark.parametrize("name", CALLS_WITHOUT_TOOLS)
async def test_a_program_without_tools_is_answered(live: Live, name: str) -> None:
    path, bodies = CALLS_WITHOUT_TOOLS[name]
    for body in bodies:
        if body.get("stream"):
            assert await live.stream(path, body)
        else:
            reply = await live.obtain(path, body)
            texts = [one.get("text") or one.get("message", {}).get("content") for one in reply["choices"]]
            assert all(texts) and len(texts) == len(body.get("prompt", [1]))
            scored = [one["logprobs"]["token_logprobs"] for one in reply["choices"] if body.get("echo")]
            assert all(len(one) > 1 and one[0] is None and None not in one[1:] for one in scored)
