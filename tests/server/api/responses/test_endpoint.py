"""POST /v1/responses, whole and streamed, over loopback."""

import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from tests.server.fakes import ANSWER, UNKNOWN, failing, say
from tests.server.live import RESPONSES, Live, bearer, live_server, prompt_of

LOGPROBS = "message.output_text.logprobs"


async def ask(live: Live, **fields: object) -> Any:
    """A whole response that must succeed."""
    return await live.obtain(RESPONSES, {"input": "Hi", **fields})


async def stream(live: Live, **fields: object) -> list[Any]:
    """All events of a stream; checks their numbers."""
    events = await live.stream_named(RESPONSES, {"input": "Hi", **fields})
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def kinds(events: list[Any]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER: dict[str, Any] = {"type": "function", "name": "weather", "parameters": CITY}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city":"Graz"}}\n</tool_call>'


@pytest.fixture
async def tooled() -> AsyncIterator[Live]:
    """A server whose answers call a tool, with a context that the words about tools fit into."""

    async with live_server(context_length=4096) as live:
        live.dispatcher.script = partial(say, f"Let me see.\n{CALL}")
        yield live


async def test_a_whole_response_has_one_message_with_one_part(live: Live) -> None:
    reply = await ask(live, instructions="Be brief.", metadata={"a": "b"}, temperature=0.5)
    text = "system:Be brief.\nuser:Hi\nassistant:"
    assert prompt_of(live) == text
    assert reply["id"].startswith("resp_")
    part = {"type": "output_text", "text": ANSWER, "annotations": [], "logprobs": []}
    said = {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
    length, answer = len(text), len(ANSWER.encode()) + 1
    told = {
        "output": [{"id": reply["id"].replace("resp_", "msg_"), **said}],
        **{"object": "response", "status": "completed", "error": None, "incomplete_details": None, "store": True},
        **{"instructions": "Be brief.", "metadata": {"a": "b"}, "temperature": 0.5},
        "text": {"format": {"type": "text"}},
        "usage": {
            **{"input_tokens": length, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0}},
            **{"output_tokens": answer, "output_tokens_details": {"reasoning_tokens": 0}},
            "total_tokens": length + answer,
        },
    }
    assert {name: reply[name] for name in told} == told
    assert reply["metrics"]["queue_time_ms"] >= 0


async def test_an_answer_that_is_cut_is_incomplete(live: Live) -> None:
    reply = await ask(live, max_output_tokens=2)
    assert (reply["status"], reply["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (reply["output"][0]["status"], reply["output"][0]["content"][0]["text"]) == ("incomplete", "Gr")
    assert (await stream(live, max_output_tokens=2))[-1]["type"] == "response.incomplete"


async def test_turns_come_as_items_and_an_earlier_answer_may_be_among_them(live: Live) -> None:
    earlier = (await ask(live))["output"]
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    last = {"type": "message", "role": "user", "content": parts}
    await ask(live, input=[{"role": "developer", "content": "D"}, *earlier, last])
    assert prompt_of(live) == f"system:D\nassistant:{ANSWER}\nuser:ab\nassistant:"


async def test_the_events_of_a_stream_build_up_the_whole_response(live: Live) -> None:
    events = await stream(live, include=[LOGPROBS], top_logprobs=2)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert kinds(events) == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * len(deltas),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert "".join(event["delta"] for event in deltas) == ANSWER
    text, part, item, completed = events[-4:]
    assert text["text"] == part["part"]["text"] == ANSWER
    assert [one for event in deltas for one in event["logprobs"]] == text["logprobs"] == part["part"]["logprobs"]
    assert len(text["logprobs"][0]["top_logprobs"]) == 2
    assert completed["response"]["output"] == [item["item"]]
    whole = await ask(live, include=[LOGPROBS], top_logprobs=2)
    for name in ("output", "id", "created_at", "metrics"):
        whole.pop(name), completed["response"].pop(name)
    assert completed["response"] == whole


async def test_a_failure_ends_the_stream_with_what_there_was(live: Live) -> None:
    live.dispatcher.script = failing
    last = (await stream(live))[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {"code": "generation_failed", "message": "the device caught fire"}
    (item,) = last["response"]["output"]
    assert (item["content"][0]["text"], item["status"]) == ("Half", "incomplete")


async def test_the_extensions_of_chats_are_there_too(live: Live) -> None:
    own = {"seed": 7, "top_k": 3, "ignore_eos": True, "min_tokens": 2, "repetition_penalty": 1.5}
    await ask(live, **own, priority=-1, stop=["x"])
    (request,) = live.dispatcher.submitted
    assert {name: getattr(request.sampling, name) for name in own} == own
    assert (request.sampling.stop, request.priority) == (("x",), -1)


async def test_a_call_is_an_item_of_its_own_whole_and_streamed(tooled: Live) -> None:
    reply = await ask(tooled, tools=[WEATHER], store=False)
    said, called = reply["output"]
    assert said["content"][0]["text"] == "Let me see."
    named = {"name": "weather", "arguments": '{"city":"Graz"}', "id": called["id"], "call_id": called["call_id"]}
    assert called == {"type": "function_call", "status": "completed", **named}
    assert (reply["tools"][0]["name"], reply["tools"][0]["parameters"]) == ("weather", WEATHER["parameters"])
    events = await stream(tooled, tools=[WEATHER])
    part = ["output_item.added", "content_part.added", "output_text.done", "content_part.done", "output_item.done"]
    call = ["output_item.added", *(f"function_call_arguments.{one}" for one in ("delta", "done")), "output_item.done"]
    told = [kind for kind in kinds(events) if kind != "output_text.delta"]
    assert told == ["created", "in_progress", *part, *call, "completed"]
    assert [event["output_index"] for event in events if "output_index" in event][-4:] == [1, 1, 1, 1]
    assert events[-1]["response"]["output"] == [events[-6]["item"], events[-2]["item"]]
    assert events[-2]["item"]["arguments"] == events[-3]["arguments"] == '{"city":"Graz"}'


STATUSES = [
    (len("Let me s"), ["incomplete"]),
    (len(f"Let me see.\n{CALL}"), ["completed", "completed"]),
    (len(f"Let me see.\n{CALL}\nWh"), ["completed", "completed", "incomplete"]),
]


@pytest.mark.parametrize(("tokens", "statuses"), STATUSES)
async def test_of_a_cut_answer_only_the_last_item_is_incomplete(tooled: Live, tokens: int, statuses: list[str]) -> None:
    """A call that was whole was called incomplete where the answer was cut behind it, and clients left it out."""
    tooled.dispatcher.script = partial(say, f"Let me see.\n{CALL}\nWhat else?")
    reply = await ask(tooled, tools=[WEATHER], max_output_tokens=tokens)
    assert (reply["status"], [item["status"] for item in reply["output"]]) == ("incomplete", statuses)
    events = await stream(tooled, tools=[WEATHER], max_output_tokens=tokens)
    done = [event["item"]["status"] for event in events if event["type"] == "response.output_item.done"]
    assert done == [item["status"] for item in events[-1]["response"]["output"]] == statuses


@pytest.mark.parametrize(("tokens", "status"), [(len(CALL) - 22, "incomplete"), (len(CALL) - 5, "completed")])
async def test_a_call_that_is_forced_is_whole_once_its_arguments_are(tooled: Live, tokens: int, status: str) -> None:
    tooled.dispatcher.script = partial(say, CALL)
    fields = {"tools": [WEATHER], "tool_choice": "required", "max_output_tokens": tokens}
    reply, last = await ask(tooled, **fields), (await stream(tooled, **fields))[-1]
    assert (reply["status"], [item["status"] for item in reply["output"]]) == (status, [status])
    assert last["type"] == f"response.{status}"


async def test_some_tools_may_be_allowed(tooled: Live) -> None:
    clock = {"type": "function", "name": "clock"}
    for name, called in (("weather", 2), ("clock", 1)):
        tools = [{"type": "function", "name": name}, {"type": "web_search"}]
        choice = {"type": "allowed_tools", "mode": "auto", "tools": tools}
        reply = await ask(tooled, tools=[WEATHER, clock], tool_choice=choice)
        assert (len(reply["output"]), reply["tool_choice"]) == (called, choice)
    await ask(tooled, tools=[WEATHER, clock], tool_choice=choice | {"mode": "required"})
    grammar = tooled.dispatcher.submitted[-1].sampling.grammar
    assert grammar is not None and "clock" in grammar.text and "weather" not in grammar.text
    reply = await ask(tooled, tools=[WEATHER], tool_choice={"type": "function", "name": "weather"})
    assert reply["tool_choice"] == {"type": "function", "name": "weather"}


async def test_calls_and_results_of_earlier_turns_are_read(tooled: Live) -> None:
    """As a client with `store` false passes them back, its other items among them."""
    first = await ask(tooled, tools=[WEATHER], store=False)
    result = {"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "Rain"}
    asked = {"role": "user", "content": "Hi"}
    await ask(tooled, input=[asked, {"type": "reasoning", "summary": []}, *first["output"], result], store=False)
    whole = f"user:Hi\nassistant:Let me see.\n{CALL}\nuser:<tool_response>\nRain\n</tool_response>\nassistant:"
    assert prompt_of(tooled) == whole
    stored = await ask(tooled, tools=[WEATHER], instructions="Not kept.")
    result["call_id"] = stored["output"][1]["call_id"]
    reply = await ask(tooled, input=[result], previous_response_id=stored["id"])
    assert prompt_of(tooled) == whole
    assert (reply["previous_response_id"], reply["store"]) == (stored["id"], True)


async def test_a_custom_tool_is_called_with_a_text_and_its_result_goes_back(tooled: Live) -> None:
    written = {"format": {"type": "grammar", "syntax": "lark"}}
    patch = {"type": "custom", "name": "patch", "description": "Applies it.", **written}
    call = '<tool_call>\n{"name": "patch", "arguments": {"input": "*** Begin\\n+a"}}\n</tool_call>'
    tooled.dispatcher.script = partial(say, call)
    events = await stream(tooled, tools=[patch], tool_choice="required", store=False)
    told = ["custom_tool_call_input.delta", "custom_tool_call_input.done"]
    assert kinds(events)[2:] == ["output_item.added", *told, "output_item.done", "completed"]
    (item,) = events[-1]["response"]["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "patch", "*** Begin\n+a")
    assert events[3]["delta"] == events[4]["input"] == item["input"] and item["id"].startswith("ctc_")
    result = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "Done"}
    await ask(tooled, input=[{"role": "user", "content": "Hi"}, item, result], store=False)
    assert "*** Begin" in prompt_of(tooled) and "Done" in prompt_of(tooled)


async def test_tools_of_other_servers_are_passed_over(tooled: Live) -> None:
    """Codex sends its own tools with each call, and ended at a 400."""
    reply = await ask(tooled, tools=[{"type": "web_search"}, WEATHER, {"type": "local_shell"}], tool_choice="auto")
    assert [tool["name"] for tool in reply["tools"]] == ["weather"] and "web_search" not in prompt_of(tooled)


async def test_stored_responses_are_shown_forgotten_and_bounded() -> None:
    async with live_server(stored_response_bytes=6000, context_length=4096) as live:
        kept, passed = await ask(live), await ask(live, store=False)
        streamed = (await stream(live))[-1]["response"]
        for reply, status in ((kept, 200), (streamed, 200), (passed, 404)):
            shown = await live.get(f"{RESPONSES}/{reply['id']}")
            assert shown.status == status and (status == 404 or shown.json == reply)
        gone = await live.ask("DELETE", f"{RESPONSES}/{kept['id']}")
        assert gone.json == {"id": kept["id"], "object": "response", "deleted": True}
        for _ in range(5):
            last = await ask(live)
        await ask(live, previous_response_id=last["id"])
        large = await ask(live, metadata={"a": "x" * 6000})  # what is no text takes memory too
        for forgotten in (kept, streamed, large):
            further = {"input": "Hi", "previous_response_id": forgotten["id"]}
            await live.refused(RESPONSES, further, 404, code="response_not_found")


async def test_a_kept_response_is_not_streamed_again(live: Live) -> None:
    """JSON came all the same, of which OpenAI's SDKs make a stream without an event."""
    path = f"{RESPONSES}/{(await ask(live))['id']}"
    for query, param in (("stream=true", "stream"), ("starting_after=3", "starting_after")):
        refused = await live.get(f"{path}?{query}")
        error = refused.json["error"]
        assert (refused.status, error["param"], error["code"]) == (400, param, "unsupported")
        assert "is not streamed again" in error["message"]
    assert (await live.get(f"{path}?stream=false&include[]=reasoning.encrypted_content")).status == 200


async def test_no_key_goes_on_from_another_ones_responses_or_makes_them_be_forgotten() -> None:
    """One that stored many emptied the store of all the others."""
    async with live_server(keys=["mine", "other"], stored_response_bytes=6000, context_length=4096) as live:
        kept = await live.obtain(RESPONSES, {"input": "Hi"}, **bearer("mine"))
        for metadata in (*[{}] * 6, {"a": "x" * 6000}):
            await live.obtain(RESPONSES, {"input": "Hi", "metadata": metadata}, **bearer("other"))
        further = {"input": "Hi", "previous_response_id": kept["id"]}
        await live.obtain(RESPONSES, further, **bearer("mine"))
        await live.refused(RESPONSES, further, 404, **bearer("other"))


def item(**fields: object) -> dict[str, object]:
    """A body whose input is one item."""
    return {"input": [fields]}


def part(kind: str) -> dict[str, object]:
    """A turn with nothing but the kind of its only part."""
    return item(role="user", content=[{"type": kind}])


NO_OBJECT = {"parameters": {"type": "array"}, "strict": True}
ODD: dict[str, object] = {
    **{"max_output_tokens": 0, "background": True, "conversation": "c", "prompt": {"id": "p"}, "truncation": "auto"},
    **{"tool_choice": "required", "n": 2, "response_format": {"type": "text"}, "prompt_logprobs": 1},
}
BAD: list[tuple[str, dict[str, Any]]] = [
    # (beginning of the message, with the parameter; fields)
    *(("input: ", {"input": given}) for given in (None, [], [{"type": "computer_call"}])),
    ("input[0].name: ", item(type="function_call", call_id="c")),
    ("input[0].call_id: ", item(type="function_call_output", output="x")),
    ("input[0].role: ", item(content="Hi")),
    ("input[0].role: ", item(role="tool", content="x")),
    ("input[0].content: ", item(role="user")),
    ("input[0].content[0]: ", part("input_image")),
    ("input[0].content[0].text: ", part("input_text")),
    ("input: no token", item(role="user", content=UNKNOWN)),
    ("input: has ", {"input": "x" * 300}),
    *((f"{name}: ", {name: value}) for name, value in ODD.items()),
    *(("tools[0].name: ", {"tools": [{"type": kind}]}) for kind in ("custom", "function")),
    ("tools[0].parameters.type: ", {"tools": [{**WEATHER, **NO_OBJECT}]}),
    ("top_logprobs: ", {"tools": [WEATHER], "top_logprobs": 1}),
    ("max_tokens: is called max_output_tokens", {"max_tokens": 5}),
    ("text.format.schema: ", {"text": {"format": {"type": "json_schema"}}}),
]


@pytest.mark.parametrize(("beginning", "fields"), BAD)
async def test_what_is_not_supported_is_refused(live: Live, beginning: str, fields: dict[str, object]) -> None:
    error = await live.refused(RESPONSES, {"input": "Hi", **fields}, param=re.split(r"\W", beginning)[0])
    assert error["message"].startswith(beginning)
    assert "messages" not in error["message"] and "max_completion" not in error["message"]
    assert live.dispatcher.submitted == []


async def test_what_asks_for_nothing_is_passed_over(live: Live) -> None:
    nothing: dict[str, object] = {
        **dict.fromkeys(("previous_response_id", "conversation", "prompt")),
        **{"store": False, "background": False, "truncation": "disabled", "parallel_tool_calls": True, "user": "me"},
        **{"tools": [], "tool_choice": "auto", "include": ["reasoning.encrypted_content"]},
        **{"reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}, "verbosity": "low"}},
    }
    assert (await ask(live, **nothing))["status"] == "completed"


@pytest.mark.parametrize("number", ["1000000000000000000000000000000", "-9223372036854775809"])
async def test_numbers_beyond_64_bits_in_schemas_fail_nothing(live: Live, number: str) -> None:
    parameters = b'{"type": "object", "properties": {"a": {"type": "integer", "maximum": %s}}}' % number.encode()
    tool = b'"tools": [{"type": "function", "name": "f", "parameters": %s}]' % parameters
    text = b'"text": {"format": {"type": "json_schema", "name": "x", "schema": %s}}' % parameters
    for field in (tool, text):
        status, reply = await live.post(RESPONSES, b'{"input": "Hi", %s}' % field)
        assert status in (200, 400), reply
