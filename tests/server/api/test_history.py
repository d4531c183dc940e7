"""What a client sends back of earlier turns is data: whatever wrote it, the conversation goes on."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pytest

from models.errors import TextError
from tests.server.fakes import FakeText
from tests.server.live import CHAT, MESSAGES, RESPONSES, Live, bearer, live_server, prompt_of

IGNORED = "x-lengthwise-ignored"


CONTEXT = 4096  # the words about tools fit into it
ROOM = "x-lengthwise-max-tokens"
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def user(text: str = "Hi") -> dict[str, object]:
    return {"role": "user", "content": text}


def past(arguments: object, **more: object) -> list[dict[str, object]]:
    function = {"name": "f"} if arguments is None else {"name": "f", "arguments": arguments}
    call = {"id": "c1", "type": "function", "function": function}
    return [user(), {"role": "assistant", "tool_calls": [call], **more}, result("bad")]


def result(content: object, **more: object) -> dict[str, object]:
    return {"role": "tool", "tool_call_id": "c1", "content": content, **more}


def turn(*blocks: object, role: str = "assistant") -> dict[str, object]:
    return {"role": role, "content": [*blocks]}


def answer(content: object, **more: object) -> dict[str, object]:
    return {"role": "assistant", "content": content, **more}


def written(text: str, kind: str = "text") -> dict[str, object]:
    return {"type": kind, "text": text}


def used(given: object, name: str = "f") -> dict[str, object]:
    """A call as Anthropic's API has it."""
    return turn({"type": "tool_use", "id": "c1", "name": name, "input": given})


def back(content: object, *blocks: object) -> dict[str, object]:
    """Its result."""
    return turn({"type": "tool_result", "tool_use_id": "c1", "content": content}, *blocks, role="user")


def items(arguments: object, output: object) -> list[dict[str, object]]:
    """A call and its result as the responses API has them."""
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": arguments}
    return [call, {"type": "function_call_output", "call_id": "c1", "output": output}]


def body_of(path: str, *turns: object) -> dict[str, object]:
    return {"input": [*turns]} if path == RESPONSES else {"messages": [*turns], "max_tokens": 4}


# A ceiling

USER: dict[str, object] = {"messages": [user()]}
CEILINGS: dict[str, tuple[str, dict[str, object], int]] = {
    # what: (path, body, bytes of the prompt)
    "a chat": (CHAT, USER | {"max_tokens": 64_000}, 18),
    "a chat, by the newer name": (CHAT, USER | {"max_completion_tokens": 2**63 - 1}, 18),
    "a completion": ("/v1/completions", {"prompt": "Hi", "max_tokens": 10**9}, 2),
    "a response": (RESPONSES, {"input": "Hi", "max_output_tokens": 10**9}, 18),
    "a message": (MESSAGES, USER | {"max_tokens": 64_000}, 18),
}


@pytest.mark.parametrize("case", CEILINGS)
async def test_a_ceiling_above_the_room_is_cut_and_the_cut_is_told(live: Live, case: str) -> None:
    """Claude Code asks for 64,000 tokens in every call, and got none."""
    path, body, prompt = CEILINGS[case]
    for stream in (False, True):
        reply = await live.ask("POST", path, {**body, "stream": stream})
        assert (reply.status, reply.headers[ROOM]) == (200, str(4096 - prompt))
        assert live.dispatcher.submitted[-1].sampling.max_tokens == 4096 - prompt
    if path != MESSAGES:
        told = await live.ask("POST", "/v1/estimate", body)
        assert (told.status, told.headers[ROOM]) == (200, str(4096 - prompt))


async def test_a_ceiling_within_the_room_is_not_spoken_of(live: Live) -> None:
    for fields in ({}, {"max_tokens": 5}, {"max_tokens": 4096 - 18}):
        reply = await live.ask("POST", CHAT, USER | fields)
        assert reply.status == 200 and ROOM not in reply.headers


@pytest.mark.parametrize("case", CEILINGS)
async def test_who_wants_the_refusal_has_it(case: str) -> None:
    path, body, _ = CEILINGS[case]
    (name,) = (one for one in body if "tokens" in one)
    async with live_server(context_length=4096, refuse_long_max_tokens=True) as live:
        assert (await live.refused(path, body))["message"].startswith(f"{name}: the prompt has ")


# Calls and what else was said

ARGUMENTS: dict[str, tuple[object, str]] = {
    "cut off": ('{"place": "Par', '{"place": "Par'),
    "a list": ("[1]", "[1]"),
    "plain text": ("Paris", "Paris"),
    "an object, as Ollama has it": ({"n": 1}, '{"n":1}'),
    "null": (None, "{}"),
    "nothing": ("", "{}"),
    "more digits than a machine's word": ('{"n": 36893488147419103233}', '{"n": 36893488147419103233}'),
    "a whole file": (orjson.dumps({"text": "x" * 2000}).decode(), '{"text":"xx'),
    "deep": ('{"a":' * 60 + "1" + "}" * 60, '{"a":{"a":'),
}


@pytest.mark.parametrize("case", ARGUMENTS)
async def test_arguments_are_any_text(live: Live, case: str) -> None:
    """A call of ours that was cut off made its conversation a 400 for ever."""
    given, shown = ARGUMENTS[case]
    await live.chat(messages=[*past(given), user("Go on.")])
    assert f'{{"name": "f", "arguments": {shown}' in prompt_of(live)


@pytest.mark.parametrize("given", ['{"place": "Par', "[1]", 1, None, {"a": "b"}])
async def test_so_they_are_in_the_other_apis(live: Live, given: object) -> None:
    await live.obtain(RESPONSES, body_of(RESPONSES, user(), *items(given, "bad")))
    await live.obtain(MESSAGES, body_of(MESSAGES, user(), used(given), back("bad")))


class KnowingText(FakeText):
    """A template that words tools itself."""

    takes_tools = True
    wants_objects = False

    def encode_turns(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> tuple[list[int], slice, slice]:
        calls = [call["function"]["arguments"] for turn in messages for call in turn.get("tool_calls", ())]
        if self.wants_objects and not all(isinstance(one, dict) for one in calls):
            raise TextError("Can only get item pairs from a mapping.")
        self.seen, self.tools = [*messages], [*options.pop("tools")]
        return super().encode_turns(messages, **options)


class ItemsText(KnowingText):
    """One that goes through the arguments of calls."""

    wants_objects = True


DEEP = '{"a":' * 5000 + "1" + "}" * 5000
OBJECTS: list[tuple[type[KnowingText], str, object]] = [
    (KnowingText, '{"n": 36893488147419103233}', {"n": 36893488147419103233}),
    *((KnowingText, one, one) for one in ('{"place": "Par', "[1]", DEEP)),
    (KnowingText, orjson.dumps({"t": "x" * 80_000}).decode(), {"t": "x" * 80_000}),
    (ItemsText, '{"place": "Par', {"arguments": '{"place": "Par'}),
]


@pytest.mark.parametrize(("kind", "given", "seen"), OBJECTS)
async def test_templates_get_objects_where_they_must(kind: type[KnowingText], given: str, seen: object) -> None:
    text = kind()
    async with live_server(text=text, context_length=200_000) as live:
        await live.chat(messages=past(given), tools=[TOOL])
    called = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": seen}}
    assert text.seen == [user(), answer("", tool_calls=[called]), result("bad", name="f")]
    assert text.tools == [TOOL]


async def test_templates_get_names_and_reasoning() -> None:
    text = KnowingText()
    async with live_server(text=text, context_length=4096) as live:
        given = [*past("{}", reasoning="why"), result("x", name="g"), {**user(), "name": "bob"}]
        await live.chat(messages=[*given, answer("a", reasoning_content="b"), user()])
        names, thoughts = ([one.get(name) for one in text.seen] for name in ("name", "reasoning_content"))
        assert names == [None, None, "f", "g", "bob", None, None]
        assert thoughts == [None, "why", None, None, None, "b", None]
        reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
        for path, turns in (
            (MESSAGES, [turn({"type": "thinking", "thinking": "why", "signature": ""}, written("a"))]),
            (RESPONSES, [reasoning | {"content": [written("why", "reasoning_text")]}, answer("a")]),
            (RESPONSES, [reasoning | {"summary": [written("why", "summary_text")]}, answer("a")]),
        ):
            await live.obtain(path, body_of(path, user(), *turns, user()))
            assert text.seen[1] == {"role": "assistant", "content": "a", "reasoning_content": "why"}


PICTURES: dict[str, dict[str, object]] = {
    "image_url": {"image_url": {"url": "data:"}},
    "input_image": {"image_url": "data:"},
    "image": {"source": {"type": "base64", "data": ""}},
    "document": {"source": {}, "title": None},
    "input_file": {"file_id": "x"},
    "file": {"file": {"file_id": "x"}},
    "input_audio": {"input_audio": {}},
}


@pytest.mark.parametrize("kind", PICTURES)
async def test_a_picture_in_a_result_is_left_out_and_named(live: Live, kind: str) -> None:
    """It lost the whole conversation, as it comes again with each turn."""
    parts: list[object] = [{"type": kind, **PICTURES[kind]}, written("a.png")]
    for path, turns, place in (
        (CHAT, [*past("{}")[:2], result(parts), user()], "messages[2].content[0]"),
        (MESSAGES, [user(), used({}), back(parts)], "messages[2].content[0].content[0]"),
        (RESPONSES, [*items("{}", parts), user()], "input[1].output[0]"),
    ):
        for stream in (False, True):
            reply = await live.ask("POST", path, {**body_of(path, *turns), "stream": stream})
            assert reply.status == 200, reply.body
            assert reply.headers[IGNORED] == f"{place}.{kind}"
            assert "left out: only text can be read]a.png" in prompt_of(live)
        status, _ = await live.post(path, body_of(path, turn(parts[0], role="user")))
        assert status == 400  # the user's own


def called(**call: object) -> dict[str, object]:
    return {"role": "assistant", "tool_calls": [{"id": "c1", **call}]}


def calling(name: str, arguments: str, result: str | None = None) -> str:
    """What is read of a call, and of its result where it has one."""
    call = f'{{"name": "{name}", "arguments": {arguments}}}'
    return call if result is None else f"{call}\n</tool_call>\nuser:<tool_response>\n{result}"


OLDER = [
    answer(None, function_call={"name": "f", "arguments": "{}"}),
    {"role": "function", "name": "f", "content": "20"},
]
SHELL = (
    {"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls"]}, "status": "completed"},
    {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a.txt"}]},
)
ROLL = {"type": "mcp_call", "id": "m", "name": "roll", "arguments": '{"d":6}', "output": "4", "server_label": "s"}
SEARCH = (
    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
    {"type": "web_search_tool_result", "tool_use_id": "s", "content": {"type": "error"}},
)
REFUSAL = {"type": "refusal", "refusal": "No."}
CLOSED = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}

CUSTOM = called(type="custom", custom={"name": "f", "input": "ls"})
THINKING = {"type": "thinking", "thinking": "?"}
SAID: dict[str, tuple[str, Sequence[object], str]] = {
    # what: (path, turns before the last, what of them is read)
    "unknown fields": (CHAT, [answer("A", audio=None, x=[{}])], "assistant:A"),
    "no content": (CHAT, [answer(None, tool_calls=[])], "assistant:\n"),
    "no parts": (CHAT, [turn()], "assistant:\n"),
    "a part without text": (CHAT, [turn({"type": "text"})], "assistant:\n"),
    "a refusal": (CHAT, [answer(None, refusal="No.")], "assistant:No."),
    "a part that refuses": (CHAT, [turn(REFUSAL)], "assistant:No."),
    "a result of nothing": (CHAT, [*past("{}")[1:2], result(None)], "<tool_response>\n\n</tool_response>"),
    "an older call": (CHAT, OLDER, calling("f", "{}", "20")),
    "a custom call": (CHAT, [CUSTOM], calling("f", '{"input":"ls"}')),
    "a call without a name": (CHAT, [called(function={"name": "", "arguments": "{}"})], calling("", "{}")),
    "a call of a long name": (MESSAGES, [used({}, "f" * 300)], calling("f" * 300, "{}")),
    "an item of a null type": (RESPONSES, [{"type": None, "role": "assistant", "content": "A"}], "assistant:A"),
    "what is closed": (RESPONSES, [CLOSED], "user:Hi\nuser:Go on."),
    "a shell": (RESPONSES, SHELL, calling("local_shell", '{"command":["ls"]}', '[{"stdout":"a.txt"}]')),
    "a server of tools": (RESPONSES, [ROLL], calling("roll", '{"d":6}', "4")),
    "a message that refuses": (RESPONSES, [{"type": "message", **turn(REFUSAL)}], "assistant:No."),
    # what is ignored, and named as that
    "messages[1].content[0].thinking": (CHAT, [turn(THINKING, written("A"))], "assistant:A"),
    "input[1].web_search_call": (RESPONSES, [{"type": "web_search_call", "id": "ws_1", "action": {}}], ""),
    "input[1].abcd": (RESPONSES, [{"type": "a b\r\nc: d", "output": {}}], ""),
    ", ".join(f"messages[1].content[{place}].{one['type']}" for place, one in enumerate(SEARCH)): (
        MESSAGES,
        [turn(*SEARCH, written("A"))],
        "assistant:A",
    ),
}


@pytest.mark.parametrize("case", SAID)
async def test_what_other_servers_wrote_is_read_or_named(live: Live, case: str) -> None:
    path, turns, read = SAID[case]
    reply = await live.ask("POST", path, body_of(path, user(), *turns, user("Go on.")))
    assert reply.status == 200, reply.body
    assert read in prompt_of(live)
    assert reply.headers.get(IGNORED) == (case if "[" in case else None)


# Templates that are strict


class StrictText(FakeText):
    """A template without system role, whose roles alternate."""

    system = False

    def encode_turns(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> tuple[list[int], slice, slice]:
        roles = [message["role"] for message in messages]
        if self.system and roles[0] == "system":
            roles.pop(0)
        if "system" in roles:
            raise TextError("System role not supported")
        if roles != [("user", "assistant")[place % 2] for place in range(len(roles))]:
            raise TextError("roles must alternate")
        return super().encode_turns(messages, **options)


class LeadingText(StrictText):
    system = True


FLAT = {"type": "function", **TOOL["function"]}
DEVELOPERS = [{"role": "developer", "content": one} for one in "ab"]
STRICT: dict[str, tuple[str, dict[str, object]]] = {
    "tools alone": (CHAT, USER | {"tools": [TOOL]}),
    "a result and the user": (CHAT, {"messages": [*past("{}"), user("and?")]}),
    "instructions and tools": (RESPONSES, {"instructions": "a", "input": "b", "tools": [FLAT]}),
    "two developers": (RESPONSES, body_of(RESPONSES, *DEVELOPERS, user(), user())),
    "a result, a text": (MESSAGES, body_of(MESSAGES, user(), used({}, "w"), back("20", written("?")))),
    "the user twice": (MESSAGES, body_of(MESSAGES, user(), user("there"))),
    "a system between": (MESSAGES, {"system": "a", **body_of(MESSAGES, user(), {"role": "system", "content": "b"})}),
}


@pytest.mark.parametrize("text", [StrictText, LeadingText])
@pytest.mark.parametrize("case", STRICT)
async def test_strict_templates_word_what_was_put_there(case: str, text: type[FakeText]) -> None:
    path, body = STRICT[case]
    async with live_server(text=text(), context_length=4096) as live:
        await live.obtain(path, body)


async def test_messages_of_one_role_are_one_turn(live: Live) -> None:
    await live.post(MESSAGES, body_of(MESSAGES, user("a"), user("b"), turn(written("c")), answer("d"), user("e")))
    assert prompt_of(live) == "user:a\n\nb\nassistant:c\n\nd\nuser:e\nassistant:"


# Items that are stored


async def test_stored_items_are_found_by_their_ids() -> None:
    """The AI SDK names them in its second turn."""
    mine, other = bearer("mine"), bearer("other")
    async with live_server(keys=["mine", "other"], context_length=4096) as live:
        first = await live.obtain(RESPONSES, {"input": "Hi"}, **mine)
        (item,) = first["output"]
        said = prompt_of(live) + item["content"][0]["text"]
        for kind in ({"type": "item_reference"}, {}, {"type": None}):
            reference = {**kind, "id": item["id"]}
            await live.obtain(RESPONSES, {"input": [user(), reference, user("b")]}, **mine)
            assert prompt_of(live) == f"{said}\nuser:b\nassistant:"
            await live.refused(RESPONSES, {"input": [user(), reference]}, 404, code="item_not_found", **other)
        further = {"input": [{"id": item["id"]}, user("b")], "previous_response_id": first["id"]}
        await live.obtain(RESPONSES, further, **mine)
        error = await live.refused(RESPONSES, {"input": [{"id": item["id"] + "7"}]}, 404, **mine)
        assert error["message"].startswith("input[0].id")
