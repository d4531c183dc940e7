"""Tools in a chat: what the model is told and may answer, how its calls reach the client; closed schemas."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import orjson
import pytest

from engine.messages import FinishReason, RowSpec, RowUpdate
from engine.sampling.json_schema import close_schema
from engine.sampling.params import Grammar, GrammarKind
from server.api.input.tools import instruction
from tests.server.fakes import END, FakeText, say
from tests.server.live import Live, chat_body, live_server, prompt_of

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


# Calls in the answer


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


# What the engine is asked for


def grammar_of(live: Live) -> Grammar | None:
    return live.dispatcher.submitted[-1].sampling.grammar


def made_grammar(live: Live) -> Grammar:
    grammar = grammar_of(live)
    assert grammar is not None
    return grammar


async def test_only_a_call_that_must_come_is_made_by_a_grammar(live: Live) -> None:
    for choice, made in [(None, False), ("auto", False), ("none", False), ("required", True)]:
        await live.chat(tools=TOOLS, tool_choice=choice)
        assert (grammar_of(live) is not None) is made
    assert made_grammar(live).kind is GrammarKind.LARK


async def test_a_named_tool_is_the_only_one_that_may_be_called_though_all_are_told(live: Live) -> None:
    await live.chat(tools=TOOLS, tool_choice=tool(name="clock"))
    grammar = made_grammar(live)
    assert "clock" in grammar.text and "weather" not in grammar.text
    assert "weather" in prompt_of(live)


def allow(*names: str, mode: str = "auto") -> dict[str, object]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [tool(name=name) for name in names]}}


async def test_of_all_tools_only_those_allowed_may_be_called(live: Live) -> None:
    for names, parts in ((["weather"], 1), (["clock"], 0), (["clock", "weather"], 1)):
        live.dispatcher.script = partial(say, CALL)
        reply = await live.chat(tools=TOOLS, tool_choice=allow(*names))
        assert len(reply["choices"][0]["message"].get("tool_calls", ())) == parts
        assert grammar_of(live) is None
        await live.chat(tools=TOOLS, tool_choice=allow(*names, mode="required"))
        grammar = made_grammar(live)
        assert [name for name in ("clock", "weather") if name in grammar.text] == names
        assert "weather" in prompt_of(live)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (allow("none"), "'none' is none of the tools"),
        (allow(), "length"),
        ({"type": "allowed_tools"}, "allowed_tools: is missing"),
        ({"type": "function"}, "function: is missing"),
        (allow("clock", mode="sometimes"), "mode"),
    ],
)
async def test_a_choice_that_says_nothing_is_refused(live: Live, choice: object, said: str) -> None:
    status, reply = await live.post(CHAT, chat_body(tools=TOOLS, tool_choice=choice))
    assert (status, reply["error"]["param"]) == (400, "tool_choice")
    assert said in reply["error"]["message"]


async def test_a_format_goes_with_tools_as_the_other_way_to_answer(live: Live) -> None:
    live.dispatcher.script = partial(say, '{"text": "<tool_call> is a mark"}')
    reply = await live.chat(tools=TOOLS, response_format={"type": "json_object"})
    assert made_grammar(live).text.startswith("start: calls | answer")
    assert reply["choices"][0]["message"]["content"] == '{"text": "<tool_call> is a mark"}'
    live.dispatcher.script = partial(say, CALL)
    reply = await live.chat(tools=TOOLS, response_format={"type": "json_object"})
    assert called(reply["choices"][0]["message"]) == [("weather", {"city": "Graz"})]


# What the model is told


async def test_tools_become_a_part_of_the_system_message(live: Live) -> None:
    await live.chat(tools=TOOLS)
    words = instruction([WEATHER, {**CLOCK, "function": {"name": "clock", "parameters": NO_PARAMETERS}}])
    assert prompt_of(live) == f"system:{words}\nuser:Hi\nassistant:"
    turns = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    await live.chat(tools=TOOLS, messages=turns)
    assert prompt_of(live) == f"system:Be kind.\n\n{words}\nuser:Hi\nassistant:"
    await live.chat(tools=TOOLS, tool_choice="none")
    assert prompt_of(live) == "user:Hi\nassistant:"


NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


async def test_calls_and_results_are_turns_that_any_template_can_word(live: Live) -> None:
    calls = [
        {"id": "c1", **tool(name="weather", arguments='{"city": "Graz"}')},
        {"id": "c2", **tool(name="clock", arguments="")},
    ]
    await live.chat(
        messages=[
            {"role": "user", "content": "Well?"},
            {"role": "assistant", "content": "Let me see.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "noon"}]},
            {"role": "assistant", "content": None, "tool_calls": calls[1:]},
            {"role": "tool", "tool_call_id": "c2", "content": "one"},
        ]
    )
    assert prompt_of(live) == (
        "user:Well?\n"
        'assistant:Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Graz"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>\n'
        "user:<tool_response>\nrain\n</tool_response>\n<tool_response>\nnoon\n</tool_response>\n"
        'assistant:<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>\n'
        "user:<tool_response>\none\n</tool_response>\n"
        "assistant:"
    )


class ToolText(FakeText):
    """A chat template that knows tools."""

    takes_tools = True

    def __init__(self) -> None:
        self.seen: tuple[Any, Any] | None = None

    def encode_chat(self, messages: Any, *, tools: Any = (), **others: Any) -> list[int]:
        self.seen = (list(messages), list(tools))
        return super().encode_chat(messages, **others)


async def test_a_template_that_knows_tools_gets_them_as_they_are() -> None:
    text = ToolText()
    async with live_server(text=text) as live:
        asked, result = {"role": "user", "content": "?"}, {"role": "tool", "tool_call_id": "c", "content": "rain"}
        call = {"id": "c", **tool(name="weather", arguments='{"city": "Graz"}')}
        await live.chat(tools=[WEATHER], messages=[asked, {"role": "assistant", "tool_calls": [call]}, result])
    call = {"id": "c", **tool(name="weather", arguments={"city": "Graz"})}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert text.seen == ([asked, calling, {**result, "name": "weather"}], [WEATHER])


# What is wrong


def past(role: str = "assistant", **more: object) -> dict[str, object]:
    """A turn that calls."""
    return {"messages": [{"role": role, "tool_calls": [{"id": "c", **tool(arguments="{}")}], **more}]}


def choosing(choice: object, *tools: object) -> dict[str, object]:
    return {"tools": [*tools], "tool_choice": choice}


STRANGE, LOOSE = {"properties": {"x": {"type": "thing"}}}, {"properties": {"x": {"uniqueItems": True}}}
BY_A_TOOL, LONE = past("tool", tool_call_id="c", content=""), {"role": "tool", "content": "x"}
BAD: dict[str, tuple[dict[str, object], str, str]] = {
    # what: (fields, param, part of the message)
    "a tool of another type": ({"tools": [{"type": "retrieval"}]}, "tools", "tools[0]"),
    "a tool without a name": ({"tools": [{"type": "function", "function": {}}]}, "tools", "name"),
    "a name with blanks": ({"tools": [tool(name="a b")]}, "tools", "tools[0].function.name"),
    "a name with a line break": ({"tools": [tool(name="f\n")]}, "tools", "tools[0].function.name"),
    "two tools of a name": ({"tools": [tool(), tool()]}, "tools", "the name of two tools"),
    "too many tools": ({"tools": [tool(name=f"f{n}") for n in range(129)]}, "tools", "tools"),
    "arguments in a list": ({"tools": [tool(parameters={"type": "array"}, strict=True)]}, "tools", "must be 'object'"),
    "parameters that are text": ({"tools": [tool(parameters="{}")]}, "tools", "must be a JSON object"),
    "a wrong schema": (
        choosing("required", tool(name="g"), tool(parameters=STRANGE, strict=True)),
        "tools",
        "tools[1].function.parameters: ",
    ),
    "unenforced": (choosing("required", tool(parameters=LOOSE, strict=True)), "tools", "set strict to false"),
    "an unknown choice": (choosing("maybe", tool()), "tool_choice", "tool_choice"),
    "a choice of no tool": (choosing(tool(name="g"), tool()), "tool_choice", "'g' is none of the tools"),
    "a choice without tools": ({"tool_choice": "required"}, "tool_choice", "give some"),
    "a user's call": (past("user", content=""), "messages", "only the assistant"),
    "a call by a tool": (BY_A_TOOL, "messages", "only the assistant"),
    "a result of nothing": ({"messages": [LONE]}, "messages", "tool_call_id: is missing"),
}


@pytest.mark.parametrize(("fields", "param", "said"), BAD.values(), ids=BAD)
async def test_what_is_wrong_with_tools_is_told(live: Live, fields: dict[str, object], param: str, said: str) -> None:
    status, reply = await live.post(CHAT, chat_body(**fields))
    assert (status, reply["error"]["param"]) == (400, param), reply
    assert said in reply["error"]["message"]
    assert live.dispatcher.submitted == []


async def test_what_cannot_be_enforced_is_no_fault_where_nothing_is(live: Live) -> None:
    await live.chat(tools=[tool(parameters=LOOSE)])
    await live.chat(**choosing("required", tool(parameters=LOOSE, strict=False)))


OPEN = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["age"]}
CLOSED = {**OPEN, "required": ["name", "age"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        (OPEN, CLOSED),
        ({"type": "array", "items": OPEN}, {"type": "array", "items": CLOSED}),
        ({"anyOf": [OPEN, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        ({"$ref": "#/$defs/a", "$defs": {"a": OPEN}}, {"$ref": "#/$defs/a", "$defs": {"a": CLOSED}}),
        ({"type": "object"}, {"type": "object"}),  # any object at all is what was asked for
        ({"type": "object", "additionalProperties": OPEN}, {"type": "object", "additionalProperties": CLOSED}),
        ({"allOf": [OPEN], "properties": {"b": {}}}, {"allOf": [OPEN], "properties": {"b": {}}}),
        (
            {"properties": {"properties": OPEN}},
            {"properties": {"properties": CLOSED}, "required": ["properties"], "additionalProperties": False},
        ),
    ],
)
def test_objects_are_closed_whose_properties_are_in_one_place(schema: dict[str, Any], closed: dict[str, Any]) -> None:
    assert close_schema(schema) == closed


def json_schema(strict: bool | None) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "person", "schema": OPEN, "strict": strict}}


@pytest.mark.parametrize(
    ("flag", "fields", "closes"),
    [
        (False, {"response_format": json_schema(True)}, True),
        (False, {"response_format": json_schema(None)}, False),
        (False, {"response_format": json_schema(False)}, False),
        (True, {"response_format": json_schema(None)}, True),
        (True, {"structured_outputs": {"json": OPEN}}, True),
        (False, {"tools": [tool(parameters=OPEN, strict=True)]}, True),
        (False, {"tools": [tool(parameters=OPEN)]}, False),
        (True, {"tools": [tool(parameters=OPEN)]}, True),
    ],
)
async def test_strict_schemas_and_by_a_flag_all_close(flag: bool, fields: dict[str, object], closes: bool) -> None:
    async with live_server(close_schemas=flag, context_length=4096) as live:
        await live.chat(**fields, **({"tool_choice": "required"} if "tools" in fields else {}))
        grammar = live.dispatcher.submitted[0].sampling.grammar
        assert grammar is not None
        assert ('"required":["name","age"]' in grammar.text) == closes
        assert (orjson.dumps({"additionalProperties": False})[1:-1].decode() in grammar.text) == closes
