"""POST /v1/messages, whole and streamed, over loopback."""

import json
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest

from engine.messages import REPETITION, FinishReason, RowSpec, RowUpdate
from tests.server.fakes import ANSWER, FakeText, failing, say
from tests.server.live import MESSAGES, Live, live_server, prompt_of

WEATHER = {"name": "weather", "description": "Tells it.", "input_schema": {"type": "object"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Graz"}}\n</tool_call>'


CONTEXT = 4096  # the words about tools fit into it


SAID = [{"role": "user", "content": "Hi"}]


def body(**fields: object) -> dict[str, object]:
    return {"max_tokens": 100, "messages": SAID, **fields}


async def ask(live: Live, **fields: object) -> Any:
    """A whole message that must succeed."""
    return await live.obtain(MESSAGES, body(**fields))


async def stream(live: Live, **fields: object) -> list[Any]:
    return await live.stream_named(MESSAGES, body(**fields))


async def test_a_whole_message_has_a_block_of_text(live: Live) -> None:
    reply = await ask(live, system=[{"type": "text", "text": "Be brief."}], temperature=0.5, top_k=3)
    text = "system:Be brief.\nuser:Hi\nassistant:"
    assert prompt_of(live) == text
    assert reply.pop("id").startswith("msg_")
    cache = {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
    assert reply == {
        **{"type": "message", "role": "assistant", "model": live.service.model.names[0]},
        "content": [{"type": "text", "text": ANSWER}],
        **{"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"input_tokens": len(text), "output_tokens": len(ANSWER.encode()) + 1, **cache},
    }
    sampling = live.dispatcher.submitted[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k) == (100, 0.5, 3)


async def test_why_an_answer_ended(live: Live) -> None:
    cut = await ask(live, max_tokens=2)
    assert (cut["stop_reason"], cut["content"][0]["text"]) == ("max_tokens", "Gr")

    reasons = iter(("ü", REPETITION))

    def script(row: RowSpec) -> Iterable[RowUpdate]:
        assert row.sampling.stop == ("ü", "x")
        yield RowUpdate(row.row_id, (71,), "G", finish_reason=FinishReason.STOP, stop_reason=next(reasons))

    live.dispatcher.script = script
    for told in (("stop_sequence", "ü"), ("end_turn", None)):
        stopped = await ask(live, stop_sequences=["ü", "x"])
        assert (stopped["stop_reason"], stopped["stop_sequence"]) == told


async def test_the_events_of_a_stream_build_up_the_whole_message(live: Live) -> None:
    events, whole = await stream(live), await ask(live)
    begun, block, *deltas = events[:-3]
    assert (begun["type"], begun["message"]["content"], begun["message"]["stop_reason"]) == ("message_start", [], None)
    assert block == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert {event["type"] for event in deltas} == {"content_block_delta"}
    assert "".join(event["delta"]["text"] for event in deltas) == ANSWER
    assert [event["type"] for event in events[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"] == whole["usage"]


@pytest.mark.parametrize("stream_", [False, True])
async def test_numbers_of_a_call_keep_their_digits(live: Live, stream_: bool) -> None:
    live.dispatcher.script = partial(say, CALL.replace('"Graz"', "36893488147419103233"))
    reply = await live.ask("POST", MESSAGES, body(stream=stream_, max_tokens=200, tools=[WEATHER]))
    assert '"city": 36893488147419103233' in reply.body.decode().replace(r"\"", '"')


async def test_a_call_is_a_block_of_its_own(live: Live) -> None:
    live.dispatcher.script = partial(say, f"Let me see.\n{CALL}")
    reply = await ask(live, tools=[WEATHER])
    said, called = reply["content"]
    assert said == {"type": "text", "text": "Let me see."}
    assert called.pop("id").startswith("toolu_")
    assert called == {"type": "tool_use", "name": "weather", "input": {"city": "Graz"}}
    assert reply["stop_reason"] == "tool_use"
    events = await stream(live, tools=[WEATHER])
    _, begun = [event for event in events if event["type"] == "content_block_start"]
    assert begun["content_block"].pop("id").startswith("toolu_")
    assert (begun["index"], begun["content_block"]) == (1, {"type": "tool_use", "name": "weather", "input": {}})
    parts = [event["delta"] for event in events if event["type"] == "content_block_delta" and event["index"] == 1]
    assert json.loads("".join(part["partial_json"] for part in parts)) == {"city": "Graz"}
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


async def test_a_call_that_is_whole_is_to_be_run_though_its_repetition_was_cut(live: Live) -> None:
    live.dispatcher.script = partial(say, f"{CALL}\n{CALL}")
    cut = await ask(live, tools=[WEATHER], tool_choice={"type": "any"}, max_tokens=len(CALL) + 20)
    assert (len(cut["content"]), cut["stop_reason"]) == (1, "tool_use")


CUTS = [("", {}), ('"city": "Gr', {}), ('"city": "Graz", "days": [1, {"a": "}', {"city": "Graz", "days": [1, {}]})]


@pytest.mark.parametrize(("written", "given"), CUTS)
async def test_a_cut_call_has_the_arguments_that_its_stream_has(live: Live, written: str, given: object) -> None:
    """It had none, where the SDK reads those that are complete from the stream."""
    text = CALL[: CALL.index('"city"')] + written
    live.dispatcher.script = partial(say, text)
    fields = {"tools": [WEATHER], "tool_choice": {"type": "any"}, "max_tokens": len(text)}
    reply = await ask(live, **fields)
    assert (reply["content"][-1]["input"], reply["stop_reason"]) == (given, "max_tokens")
    deltas = [event["delta"] for event in await stream(live, **fields) if event["type"] == "content_block_delta"]
    assert "".join(delta["partial_json"] for delta in deltas) == f"{{{written}"


async def test_calls_and_their_results_go_back_as_turns(live: Live) -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Graz"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Rain"}]}
    failed = {"type": "tool_result", "tool_use_id": "toolu_2", "content": "Lost", "is_error": True}
    turns = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "?", "signature": ""}, call]},
        {"role": "user", "content": [result, failed, {"type": "text", "text": "So?"}]},
    ]
    await ask(live, messages=turns)
    results = "<tool_response>\nRain\n</tool_response>\n<tool_response>\nError: Lost\n</tool_response>"
    told = f"user:Weather?\nassistant:{CALL}\nuser:{results}\nuser:So?\nassistant:"
    assert prompt_of(live).replace('"city":"', '"city": "') == told


async def test_an_answer_goes_on_with_a_last_turn_of_the_assistants(live: Live) -> None:
    await ask(live, messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Gu"}])
    assert prompt_of(live) == "user:Hi\nassistant:Gu"


async def test_tokens_are_counted_as_they_would_be_read(live: Live) -> None:
    reply = await live.obtain(f"{MESSAGES}/count_tokens", {"messages": SAID, "system": "S"})
    assert reply == {"input_tokens": len(FakeText().encode("system:S\nuser:Hi\nassistant:"))}
    for wrong in ({"messages": SAID[:0]}, {"messages": SAID, "bad_words": ["x"]}):
        assert (await live.refused(f"{MESSAGES}/count_tokens", wrong))["type"] == "invalid_request_error"


def said(*blocks: object) -> dict[str, object]:
    return body(messages=[{"role": "user", "content": [*blocks]}])


LIST = {"name": "a", "input_schema": {"type": "array"}, "strict": True}
BAD: list[tuple[dict[str, Any], str]] = [
    *(({"messages": SAID}, "max_tokens"), (body(max_tokens=0), "max_tokens"), (body(messages=[]), "messages")),
    (said({"type": "image"}), "messages[0].content[0].type"),
    (said({"type": "tool_use", "id": "a", "name": "b", "input": {}}), "messages[0].content[0].type"),
    (said({"type": "tool_result"}), "messages[0].content[0].tool_use_id"),
    (body(tools=[LIST]), "tools[0].input_schema.type"),
    (body(tools=[WEATHER], tool_choice={"type": "tool", "name": "b"}), "tool_choice"),
    (body(tools=[WEATHER], tool_choice={"type": "tool"}), "tool_choice.name"),
    (body(mcp_servers=[{}]), "mcp_servers"),
    (body(output_config={"format": {"type": "json_schema"}}), "output_config.format.schema: is missing"),
]


@pytest.mark.parametrize(("fields", "named"), BAD)
async def test_bad_input_is_refused_in_anthropics_form(live: Live, fields: dict[str, object], named: str) -> None:
    reply = await live.ask("POST", MESSAGES, fields)
    told = reply.json
    assert (reply.status, reply.headers["request-id"]) == (400, told["request_id"])
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert named in told["error"]["message"]
    assert not live.dispatcher.submitted


@pytest.mark.parametrize(("method", "path"), [("POST", f"{MESSAGES}/batches"), ("GET", f"{MESSAGES}/count_tokens/x")])
async def test_what_there_is_not_is_told_in_anthropics_form(live: Live, method: str, path: str) -> None:
    told = (await live.ask(method, path)).json
    assert (told["type"], told["error"]["type"]) == ("error", "not_found_error")
    assert (await live.get(MESSAGES)).json["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", [MESSAGES, f"{MESSAGES}/count_tokens"])
async def test_thoughts_and_tools_of_other_servers_are_passed_over(live: Live, path: str) -> None:
    """Claude Code asks for both."""
    search = {"type": "web_search_20250305", "name": "web_search"}
    await live.obtain(path, body(thinking={"type": "enabled", "budget_tokens": 1024}, tools=[search]))


async def test_claude_codes_header_is_no_part_of_the_prompt(live: Live) -> None:
    """It stands first and is another in each run, so that no run found the prompt of one before in the cache."""
    parts = ("x-anthropic-billing-header: cc_version=2.1.197.b63; cc_entrypoint=sdk-cli;", "You are ", "brief.")
    await ask(live, system=[{"type": "text", "text": one} for one in parts])
    assert prompt_of(live).startswith("system:You are brief.\n")


async def test_a_turn_may_be_the_systems(live: Live) -> None:
    """Claude Code puts some of its words between the turns."""
    await ask(live, system="A", messages=[*SAID, {"role": "system", "content": [{"type": "text", "text": "B"}]}, *SAID])
    assert prompt_of(live).count("system:") == 2


async def test_any_model_may_be_asked_for_where_the_server_says_so(live: Live) -> None:
    assert (await live.refused(MESSAGES, body(model="claude-opus-4"), 404))["type"] == "not_found_error"
    async with live_server(accept_any_model=True) as open_to_all:
        assert (await ask(open_to_all, model="claude-opus-4"))["model"] == "fake"


async def test_a_failure_within_a_stream_is_its_last_event(live: Live) -> None:
    live.dispatcher.script = failing
    last = (await stream(live))[-1]
    assert (last["type"], last["error"]) == ("error", {"type": "api_error", "message": "the device caught fire"})
