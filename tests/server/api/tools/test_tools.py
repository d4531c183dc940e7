"""Calls of tools in the answers of chats, and how they reach the client."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import orjson
import pytest

from engine.messages import FinishReason, RowSpec, RowUpdate
from tests.server.fakes import END, say
from tests.server.live import Live

CHAT = "/v1/chat/completions"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": CITY}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Graz"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


def tool(**function: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": "f", **function}}


def called(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(one["function"]["name"], orjson.loads(one["function"]["arguments"])) for one in message["tool_calls"]]


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
                assert part["type"] == "function"
                message["tool_calls"].append({"id": part["id"], "function": {"name": "", "arguments": ""}})
            function = message["tool_calls"][part["index"]]["function"]
            function["name"] += part["function"].get("name", "")
            function["arguments"] += part["function"]["arguments"]
    return message


@pytest.mark.parametrize("choice", ["auto", "required", tool(name="weather")])
async def test_a_call_reaches_the_client_whole_and_streamed(live: Live, choice: object) -> None:
    live.dispatcher.script = partial(say, CALL)
    (choice_,) = (await live.chat(tools=TOOLS, tool_choice=choice))["choices"]
    message = choice_["message"]
    assert message["content"] is None
    assert called(message) == [("weather", {"city": "Graz"})]
    (call,) = message["tool_calls"]
    assert (call["type"], call["id"][:5], choice_["finish_reason"]) == ("function", "call_", "tool_calls")

    events = await live.stream_chat(tools=TOOLS, tool_choice=choice)
    streamed = assembled(events)
    assert streamed["content"] is None
    assert called(streamed) == called(message)
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert "tool_call>" not in orjson.dumps(events).decode()


CONTEXT = 4096  # the words about tools fit into it


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_equals_an_earlier_one_ends_the_list(live: Live, stream: bool) -> None:
    """A small model that must call made the same call until its limit."""
    graz, linz = CALL, CALL.replace("Graz", "Gmunden")
    live.dispatcher.script = partial(say, "\n".join([graz, linz, *[graz] * 40]))
    fields = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 2000}
    if stream:
        events = await live.stream_chat(**fields)
        message, finish = assembled(events), events[-1]["choices"][0]["finish_reason"]
    else:
        (choice,) = (await live.chat(**fields))["choices"]
        message, finish = choice["message"], choice["finish_reason"]
    assert called(message) == [("weather", {"city": "Graz"}), ("weather", {"city": "Gmunden"})]
    assert finish == "tool_calls"
    assert live.dispatcher.cancelled and live.dispatcher.submitted[0].generated < 2000


ENDS = {"in the tail": (CALL[:-3], "tool_calls"), "behind it": (CALL, "tool_calls")}
ENDS |= {"again": (f"{CALL}\n{CALL[:-24]}", "tool_calls"), "another": (f"{CALL}\n{CALL[:-20]}Mu", "length")}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("text", "finish"), ENDS.values(), ids=ENDS)
async def test_a_limit_cuts_no_answer_whose_calls_are_whole(live: Live, stream: bool, text: str, finish: str) -> None:
    """The reason was the limit also where it cut only what is left out, and clients did not run the calls."""
    live.dispatcher.script = partial(say, text)
    fields = {"tools": TOOLS, "tool_choice": "required", "max_tokens": len(text)}
    (*_, last) = await live.stream_chat(**fields) if stream else [await live.chat(**fields)]
    assert last["choices"][0]["finish_reason"] == finish


async def test_arguments_that_a_grammar_guarantees_are_streamed_as_they_come(live: Live) -> None:
    live.dispatcher.script = partial(say, CALL)
    events = await live.stream_chat(tools=TOOLS, tool_choice="required")
    parts = [part for event in events for part in event["choices"][0]["delta"].get("tool_calls", ())]
    assert len(parts) > 5
    assert [part.get("function", {}).get("name") for part in parts] == ["weather"] + [None] * (len(parts) - 1)


def assembled_from_the_first(events: list[Any]) -> list[dict[str, Any]]:
    """The calls that a client finds which reads one delta a chunk, the first, and begins a call at each new index."""
    calls: list[dict[str, Any]] = []
    for event in events:
        parts = event["choices"][0]["delta"].get("tool_calls")
        if not parts:
            continue
        if parts[0]["index"] == len(calls):
            calls.append({"function": {"name": parts[0]["function"]["name"], "arguments": ""}})
        calls[parts[0]["index"]]["function"]["arguments"] += parts[0]["function"]["arguments"]
    return calls


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
    assert called({"tool_calls": assembled_from_the_first(events)}) == [("weather", {"city": "Graz"}), ("clock", {})]
    assert called(assembled(events)) == [("weather", {"city": "Graz"}), ("clock", {})]
    assert [event["choices"][0]["finish_reason"] for event in events][-1] == "tool_calls"
    assert [event for event in events if "role" in event["choices"][0]["delta"]] == events[:1]


async def test_text_and_calls_that_come_at_once_are_told_one_by_one(live: Live) -> None:
    live.dispatcher.script = in_one_update(f"Let me look.\n{CALL}")
    events = await live.stream_chat(tools=TOOLS)
    kinds = [sorted(event["choices"][0]["delta"]) for event in events]
    assert kinds == [["content", "role"], ["tool_calls"], []]
    assert assembled(events)["content"] == "Let me look."


async def test_text_before_a_call_is_told_as_it_comes(live: Live) -> None:
    live.dispatcher.script = partial(say, f"Let me look.\n{CALL}")
    reply = await live.chat(tools=TOOLS)
    assert reply["choices"][0]["message"]["content"] == "Let me look."
    assert called(reply["choices"][0]["message"]) == [("weather", {"city": "Graz"})]
    events = await live.stream_chat(tools=TOOLS)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": "L"}
    assert assembled(events)["content"] == "Let me look."


@pytest.mark.parametrize(("parallel", "count"), [(None, 2), (True, 2), (False, 1)])
async def test_several_calls_are_told_unless_one_is_wanted(live: Live, parallel: bool | None, count: int) -> None:
    live.dispatcher.script = partial(say, f"{CALL}\n{OTHER}")
    reply = await live.chat(tools=TOOLS, parallel_tool_calls=parallel)
    calls = called(reply["choices"][0]["message"])
    assert calls == [("weather", {"city": "Graz"}), ("clock", {})][:count]
    ids = {one["id"] for one in reply["choices"][0]["message"]["tool_calls"]}
    assert len(ids) == count


async def test_an_answer_without_calls_is_text_as_ever(live: Live) -> None:
    plain = await live.chat()
    offered = await live.chat(tools=TOOLS)
    assert offered["choices"][0]["message"] == plain["choices"][0]["message"]
    assert offered["choices"][0]["finish_reason"] == "stop"
    assert assembled(await live.stream_chat(tools=TOOLS))["content"] == plain["choices"][0]["message"]["content"]


async def test_markup_is_text_where_there_are_no_tools(live: Live) -> None:
    live.dispatcher.script = partial(say, CALL)
    without: list[dict[str, object]] = [{}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}]
    for fields in without:
        reply = await live.chat(**fields)
        assert reply["choices"][0]["message"] == {"role": "assistant", "content": CALL}


async def test_a_call_of_no_tool_is_text(live: Live) -> None:
    live.dispatcher.script = partial(say, CALL.replace("weather", "missiles"))
    reply = await live.chat(tools=TOOLS)
    assert "missiles" in reply["choices"][0]["message"]["content"]
    assert "tool_calls" not in reply["choices"][0]["message"]


async def test_each_of_several_answers_has_its_own_calls(live: Live) -> None:
    live.dispatcher.script = partial(say, CALL)
    reply = await live.chat(tools=TOOLS, n=3)
    assert [called(choice["message"]) for choice in reply["choices"]] == [[("weather", {"city": "Graz"})]] * 3
    events = await live.stream_chat(tools=TOOLS, n=2)
    for index in range(2):
        assert len(assembled([event for event in events if event["choices"][0]["index"] == index])["tool_calls"]) == 1


async def test_a_call_that_is_cut_short_ends_by_its_length(live: Live) -> None:
    live.dispatcher.script = partial(say, CALL)
    reply = await live.chat(tools=TOOLS, tool_choice="required", max_tokens=53)
    choice = reply["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city":'


async def test_log_probabilities_are_told_with_calls_too(live: Live) -> None:
    live.dispatcher.script = partial(say, CALL)
    events = await live.stream_chat(tools=TOOLS, logprobs=True)
    tokens = [one for event in events for one in (event["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert len(tokens) == len(CALL.encode()) + 1
