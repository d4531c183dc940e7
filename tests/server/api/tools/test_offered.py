"""Tools in a chat: what the engine is asked for and the model told, and what is wrong; closed schemas."""

from functools import partial
from typing import Any

import pytest

from engine.sampling.json_schema import close_schema
from engine.sampling.params import Grammar, GrammarKind
from server.api.input.tools import instruction
from tests.server.api.tools.test_tools import CALL, CLOCK, OTHER, TOOLS, WEATHER, called, tool
from tests.server.fakes import say
from tests.server.live import CHAT, Live, chat_body, live_server, prompt_of

CONTEXT = 4096  # the words about tools fit into it


def grammar_of(live: Live) -> Grammar | None:
    return live.dispatcher.submitted[-1].sampling.grammar


def grammar_text(live: Live) -> str:
    grammar = grammar_of(live)
    assert grammar is not None and grammar.kind is GrammarKind.LARK
    return grammar.text


async def test_only_a_call_that_must_come_is_made_by_a_grammar_of_all_that_may_be_called(live: Live) -> None:
    for choice in (None, "auto", "none"):
        await live.chat(tools=TOOLS, tool_choice=choice)
        assert grammar_of(live) is None
    for forced, names in (("required", ["clock", "weather"]), (tool(name="clock"), ["clock"])):
        await live.chat(tools=TOOLS, tool_choice=forced)
        assert [name for name in ("clock", "weather") if name in grammar_text(live)] == names
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
        assert [name for name in ("clock", "weather") if name in grammar_text(live)] == names
        assert "weather" in prompt_of(live)


async def test_a_format_goes_with_tools_as_the_other_way_to_answer(live: Live) -> None:
    text = '{"text": "<tool_call> is a mark"}'
    for said, content, calls in ((text, text, []), (CALL, None, [("weather", {"city": "Graz"})])):
        live.dispatcher.script = partial(say, said)
        (choice,) = (await live.chat(tools=TOOLS, response_format={"type": "json_object"}))["choices"]
        assert grammar_text(live).startswith("start: calls | answer")
        assert (choice["message"]["content"], called(choice["message"])) == (content, calls)


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
    graz = {"id": "c1", **tool(name="weather", arguments='{"city": "Graz"}')}
    clock = {"id": "c2", **tool(name="clock", arguments="")}
    turns = [
        {"role": "user", "content": "Well?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [graz, clock]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "noon"}]},
        {"role": "assistant", "content": None, "tool_calls": [clock]},
        {"role": "tool", "tool_call_id": "c2", "content": "one"},
    ]
    await live.chat(messages=turns)
    assert prompt_of(live) == (
        f"user:Well?\nassistant:Let me see.\n{CALL}\n{OTHER}\n"
        "user:<tool_response>\nrain\n</tool_response>\n<tool_response>\nnoon\n</tool_response>\n"
        f"assistant:{OTHER}\nuser:<tool_response>\none\n</tool_response>\nassistant:"
    )


def past(role: str = "assistant", **more: object) -> dict[str, object]:
    """A turn that calls."""
    return {"messages": [{"role": role, "tool_calls": [{"id": "c", **tool(arguments="{}")}], **more}]}


def choosing(choice: object, *tools: object) -> dict[str, object]:
    return {"tools": [*tools], "tool_choice": choice}


STRANGE, LOOSE = {"properties": {"x": {"type": "thing"}}}, {"properties": {"x": {"uniqueItems": True}}}


LONE = {"role": "tool", "content": "x"}


WRONG_SCHEMA = choosing("required", tool(name="g"), tool(parameters=STRANGE, strict=True))
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
    "a wrong schema": (WRONG_SCHEMA, "tools", "tools[1].function.parameters: "),
    "unenforced": (choosing("required", tool(parameters=LOOSE, strict=True)), "tools", "set strict to false"),
    "an unknown choice": (choosing("maybe", tool()), "tool_choice", "tool_choice"),
    "a choice of no tool": (choosing(tool(name="g"), tool()), "tool_choice", "'g' is none of the tools"),
    "a choice without tools": ({"tool_choice": "required"}, "tool_choice", "give some"),
    "no tool allowed": (choosing(allow(), *TOOLS), "tool_choice", "length"),
    "an unknown one allowed": (choosing(allow("none"), *TOOLS), "tool_choice", "'none' is none of the tools"),
    "allowed in another mode": (choosing(allow("clock", mode="sometimes"), *TOOLS), "tool_choice", "mode"),
    "allowed without tools": (choosing({"type": "allowed_tools"}, *TOOLS), "tool_choice", "allowed_tools: is missing"),
    "a function unnamed": (choosing({"type": "function"}, *TOOLS), "tool_choice", "function: is missing"),
    "a user's call": (past("user", content=""), "messages", "only the assistant"),
    "a call by a tool": (past("tool", tool_call_id="c", content=""), "messages", "only the assistant"),
    "a result of nothing": ({"messages": [LONE]}, "messages", "tool_call_id: is missing"),
}


@pytest.mark.parametrize(("fields", "param", "said"), BAD.values(), ids=BAD)
async def test_what_is_wrong_with_tools_is_told(live: Live, fields: dict[str, object], param: str, said: str) -> None:
    await live.refused(CHAT, chat_body(**fields), param=param, said=said)
    assert live.dispatcher.submitted == []


OPEN = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["age"]}


CLOSED = {**OPEN, "required": ["name", "age"], "additionalProperties": False}


OBJECTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
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
]


@pytest.mark.parametrize(("schema", "closed"), OBJECTS)
def test_objects_are_closed_whose_properties_are_in_one_place(schema: dict[str, Any], closed: dict[str, Any]) -> None:
    assert close_schema(schema) == closed


def json_schema(strict: bool | None) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "person", "schema": OPEN, "strict": strict}}


STRICT = [
    (False, {"response_format": json_schema(True)}, True),
    (False, {"response_format": json_schema(None)}, False),
    (False, {"response_format": json_schema(False)}, False),
    (True, {"response_format": json_schema(None)}, True),
    (True, {"structured_outputs": {"json": OPEN}}, True),
    (False, {"tools": [tool(parameters=OPEN, strict=True)]}, True),
    (False, {"tools": [tool(parameters=OPEN)]}, False),
    (True, {"tools": [tool(parameters=OPEN)]}, True),
]


@pytest.mark.parametrize(("flag", "fields", "closes"), STRICT)
async def test_strict_schemas_and_by_a_flag_all_close(flag: bool, fields: dict[str, object], closes: bool) -> None:
    async with live_server(close_schemas=flag, context_length=4096) as live:
        await live.chat(**fields, **({"tool_choice": "required"} if "tools" in fields else {}))
        grammar = grammar_of(live)
    assert grammar is not None
    for part in ('"required":["name","age"]', '"additionalProperties":false'):
        assert (part in grammar.text) == closes
