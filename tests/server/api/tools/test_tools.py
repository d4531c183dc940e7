"""Calls of tools in the answers of chats, and how they reach the client."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import orjson
import pytest

from engine.messages import FinishReason, RowSpec, RowUpdate
from tests.server.fakes import ANSWER, END, say
from tests.server.live import Live

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": CITY}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Graz"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


def tool(**function: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": "f", **function}}


def called(message: dict[str, Any]) -> list[tuple[str, Any]]:
    calls = message.get("tool_calls", ())
    return [(one["function"]["name"], orjson.loads(one["function"]["arguments"])) for one in calls]


def assembled(events: list[Any]) -> dict[str, Any]:
    """The message that a stream's deltas add up to, as OpenAI's clients do it."""
    message: dict[str, Any] = {"content": None, "tool_calls": []}
    for event in events:
        delta = event["choices"][0]["delta"]
        if "content" in delta:
            message["content"] = (message["content"] or "") + delta["content"]
        for part in delta.get("tool_calls", ()):
            if "id" in part:
                assert part["index"] == len(message["tool_calls"])
                begun = {"id": part["id"], "type": part["type"], "function": {"name": "", "arguments": ""}}
                message["tool_calls"].append(begun)
            function = message["tool_calls"][part["index"]]["function"]
            function["name"] += part["function"].get("name", "")
            function["arguments"] += part["function"]["arguments"]
    return message


CONTEXT = 4096  # the words about tools fit into it
GRAZ = ("weather", {"city": "Graz"})


async def told(live: Live, stream: bool, **fields: object) -> tuple[dict[str, Any], str]:
    """The message of an answer, and why it ended."""
    if stream:
        events = await live.stream_chat(tools=TOOLS, **fields)
        return assembled(events), events[-1]["choices"][0]["finish_reason"]
    (choice,) = (await live.chat(tools=TOOLS, **fields))["choices"]
    return choice["message"], choice["finish_reason"]


@pytest.mark.parametrize("choice", ["auto", "required", tool(name="weather")])
async def test_a_call_reaches_the_client_whole_and_streamed(live: Live, choice: object) -> None:
    live.dispatcher.script = partial(say, CALL)
    for stream in (False, True):
        message, finish = await told(live, stream, tool_choice=choice)
        assert (message["content"], called(message), finish) == (None, [GRAZ], "tool_calls")
        (call,) = message["tool_calls"]
        assert (call["type"], call["id"][:5]) == ("function", "call_")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_equals_an_earlier_one_ends_the_list(live: Live, stream: bool) -> None:
    """A small model that must call made the same call until its limit."""
    live.dispatcher.script = partial(say, "\n".join([CALL, CALL.replace("Graz", "Gmunden"), *[CALL] * 40]))
    message, finish = await told(live, stream, tool_choice="required", max_tokens=2000)
    assert (called(message), finish) == ([GRAZ, ("weather", {"city": "Gmunden"})], "tool_calls")
    assert live.dispatcher.cancelled and live.dispatcher.submitted[0].generated < 2000


ENDS = {"in the tail": (CALL[:-3], "tool_calls"), "behind it": (CALL, "tool_calls")}
ENDS |= {"again": (f"{CALL}\n{CALL[:-24]}", "tool_calls"), "another": (f"{CALL}\n{CALL[:-20]}Mu", "length")}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("text", "finish"), ENDS.values(), ids=ENDS)
async def test_a_limit_cuts_no_answer_whose_calls_are_whole(live: Live, stream: bool, text: str, finish: str) -> None:
    """The reason was the limit also where it cut only what is left out, and clients did not run the calls."""
    live.dispatcher.script = partial(say, text)
    assert (await told(live, stream, tool_choice="required", max_tokens=len(text)))[1] == finish


async def test_arguments_that_a_grammar_guarantees_are_streamed_as_they_come(live: Live) -> None:
    live.dispatcher.script = partial(say, CALL)
    events = await live.stream_chat(tools=TOOLS, tool_choice="required")
    parts = [part for event in events for part in event["choices"][0]["delta"].get("tool_calls", ())]
    assert len(parts) > 5
    assert [part.get("function", {}).get("name") for part in parts] == ["weather"] + [None] * (len(parts) - 1)


def assembled_from_the_first(events: list[Any]) -> dict[str, Any]:
    """What a client finds which reads one delta a chunk, the first, and begins a call at each new index."""
    calls: list[dict[str, Any]] = []
    for event in events:
        for part in event["choices"][0]["delta"].get("tool_calls", ())[:1]:
            if part["index"] == len(calls):
                calls.append({"function": {"name": part["function"]["name"], "arguments": ""}})
            calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return {"tool_calls": calls}


def in_one_update(text: str) -> Callable[[RowSpec], Iterable[RowUpdate]]:
    """A script in which a reader that was slow finds the whole text at once."""

    def script(request: RowSpec) -> Iterable[RowUpdate]:
        yield RowUpdate(request.row_id, tuple(text.encode()), text)
        yield RowUpdate(request.row_id, (END,), finish_reason=FinishReason.STOP)

    return script


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("at_once", [False, True], ids=["token by token", "at once"])
async def test_a_client_that_reads_one_delta_a_chunk_gets_every_call(live: Live, choice: str, at_once: bool) -> None:
    """The first chunk of a call held two deltas of its index: its name, and the beginning of its arguments."""
    text = f"{CALL}\n{OTHER}"
    live.dispatcher.script = in_one_update(text) if at_once else partial(say, text)
    events = await live.stream_chat(tools=TOOLS, tool_choice=choice)
    assert called(assembled_from_the_first(events)) == called(assembled(events)) == [GRAZ, ("clock", {})]
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert [event for event in events if "role" in event["choices"][0]["delta"]] == events[:1]
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "tool_call>" not in orjson.dumps(events).decode()


async def test_text_and_calls_that_come_at_once_are_told_one_by_one(live: Live) -> None:
    live.dispatcher.script = in_one_update(f"Let me look.\n{CALL}")
    events = await live.stream_chat(tools=TOOLS)
    assert [sorted(event["choices"][0]["delta"]) for event in events] == [["content", "role"], ["tool_calls"], []]
    assert assembled(events)["content"] == "Let me look."


async def test_text_before_a_call_is_told_as_it_comes(live: Live) -> None:
    live.dispatcher.script = partial(say, f"Let me look.\n{CALL}")
    for stream in (False, True):
        message, _ = await told(live, stream)
        assert (message["content"], called(message)) == ("Let me look.", [GRAZ])
    first, *_ = await live.stream_chat(tools=TOOLS)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "L"}


@pytest.mark.parametrize(("parallel", "count"), [(None, 2), (True, 2), (False, 1)])
async def test_several_calls_are_told_unless_one_is_wanted(live: Live, parallel: bool | None, count: int) -> None:
    live.dispatcher.script = partial(say, f"{CALL}\n{OTHER}")
    message, _ = await told(live, False, parallel_tool_calls=parallel)
    assert called(message) == [GRAZ, ("clock", {})][:count]
    assert len({one["id"] for one in message["tool_calls"]}) == count


NO_CALLS: list[tuple[str, dict[str, object]]] = [
    (ANSWER, {"tools": TOOLS}),
    (CALL, {}),
    (CALL, {"tools": []}),
    (CALL, {"tools": TOOLS, "tool_choice": "none"}),
    (CALL.replace("weather", "missiles"), {"tools": TOOLS}),
]


@pytest.mark.parametrize(("said", "fields"), NO_CALLS)
async def test_what_calls_no_tool_is_text_as_ever(live: Live, said: str, fields: dict[str, object]) -> None:
    live.dispatcher.script = partial(say, said)
    (choice,) = (await live.chat(**fields))["choices"]
    assert choice["message"] == {"role": "assistant", "content": said} and choice["finish_reason"] == "stop"
    assert assembled(await live.stream_chat(**fields)) == {"content": said, "tool_calls": []}


async def test_each_of_several_answers_has_its_own_calls(live: Live) -> None:
    live.dispatcher.script = partial(say, CALL)
    reply = await live.chat(tools=TOOLS, n=3)
    assert [called(choice["message"]) for choice in reply["choices"]] == [[GRAZ]] * 3
    events = await live.stream_chat(tools=TOOLS, n=2)
    for index in range(2):
        assert called(assembled([event for event in events if event["choices"][0]["index"] == index])) == [GRAZ]


async def test_log_probabilities_are_told_with_calls_too(live: Live) -> None:
    live.dispatcher.script = partial(say, CALL)
    events = await live.stream_chat(tools=TOOLS, logprobs=True)
    tokens = [one for event in events for one in (event["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert len(tokens) == len(CALL.encode()) + 1
