"""Programs of others at their defaults: their turns are answered whole, and find their run, never across keys."""

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson
import pytest

from engine.messages import RowSpec, RowUpdate
from scheduler.programs.program import Program
from scheduler.programs.recognizer import Recognizer, Signs
from server.api.input.program import read_signs
from server.api.input.tools import CALL_TAIL, OPEN, RESULT_OPEN, call_head
from tests.server.api.programs.agents import CLAUDE_CODE, CODEX, CODING_AGENTS, OPENCODE, PICTURE, SDKS, Call, Shape
from tests.server.api.programs.subagents import SPAWNING
from tests.server.api.programs.without_tools import CALLS_WITHOUT_TOOLS
from tests.server.api.tools.test_tools import assembled
from tests.server.fakes import ANSWER, END, say
from tests.server.live import CHAT, NO_HEADERS, RESPONSES, Live, prompt_of

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
    # The model was told all that was said: calls, results, and the answer.
    prompt = prompt_of(live)
    assert prompt.count(f"{OPEN}\n") == len(shape.calls) + 1  # and once in the words about tools
    assert ANSWER in prompt and PICTURE not in prompt
    places = [prompt.index(told) for _, _, told in shape.calls if isinstance(told, str)]
    assert places == sorted(places)


def script_of(shape: Shape) -> Any:
    """Call the tools, by how many results are there, then answer."""
    called = [call_head(tool) + json.dumps(arguments) + CALL_TAIL for tool, arguments, _ in shape.calls]

    def script(row: RowSpec) -> Iterable[RowUpdate]:
        results = bytes(one for one in row.prompt if one != END).decode().count(f"{RESULT_OPEN}\n")
        return say([*called, ANSWER][results], row)

    return script


async def ask(live: Live, shape: Shape, history: list[Any]) -> tuple[Call | None, str, str]:
    """The call of a tool, the text, and the item's id, of an answer that must be whole."""
    body = {**shape.body, shape.key: history}
    if shape.path == CHAT:
        return await ask_chat(live, shape, body)
    events = await live.stream_named(shape.path, body, shape.headers)
    if shape.path == RESPONSES:
        return read_response(events[-1])
    return read_message(events)


async def ask_chat(live: Live, shape: Shape, body: dict[str, Any]) -> tuple[Call | None, str, str]:
    if body.get("stream"):
        events = await live.stream(CHAT, body, shape.headers)
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


NAMES = ("prompt_cache_key", "metadata", "client_metadata")  # of bodies
LATER = 4  # turns of a shape behind the first


def bodies(shape: Shape, run: str) -> Iterator[dict[str, Any]]:
    """Of a run's turns in order, as other texts than another run's."""
    history: list[Any] = orjson.loads(orjson.dumps(shape.history))
    history[-1]["content"] = f"{history[-1]['content']} {run}"
    for at, (tool, arguments, told) in enumerate(shape.calls):
        yield {**shape.body, shape.key: [*history]}
        call = Call(f"call_{run}_{at}", f"fc_{run}_{at}", tool, orjson.dumps(arguments).decode())
        history += shape.write(call, told)
    yield {**shape.body, shape.key: [*history]}
    history += shape.close(f"Done with {run}.", f"msg_{run}")
    yield {**shape.body, shape.key: [*history]}


def put(recognizer: Recognizer, *chain: str, key: str = "key") -> Program:
    """The run of a call with these messages."""
    return recognizer.recognize(key, Signs(chain=[one.encode() for one in chain]), 0.0)


def put_body(recognizer: Recognizer, body: object, headers: Mapping[str, str] = NO_HEADERS) -> Program:
    return recognizer.recognize("key", read_signs(orjson.dumps(body), headers), 0.0)


def play(shapes: Mapping[str, Shape], runs: int, keys: int, seed: int) -> tuple[int, int, int]:
    """Later turns, those put with their run, and those put with another, of mingled runs without names and headers."""
    draw, recognizer = random.Random(seed), Recognizer()
    going = {
        (f"{name} {run}", f"key {run % keys}"): bodies(shape, f"run {run}")
        for name, shape in shapes.items()
        for run in range(runs)
    }
    own: dict[str, Program] = {}
    later = right = wrong = 0
    while going:
        run, key = draw.choice([*going])
        body = next(going[run, key], None)
        if body is None:
            del going[run, key]
            continue
        plain = {name: value for name, value in body.items() if name not in NAMES}
        found = recognizer.recognize(key, read_signs(orjson.dumps(plain), {}), 0.0)
        later += run in own
        right += own.get(run) is found
        wrong += found in own.values() and own.get(run) is not found
        own[run] = found
    return later, right, wrong


def test_turns_of_mingled_runs_are_recognized_by_their_messages_alone() -> None:
    """At least 0.95 recognized and less than 0.001 wrongly, of seven programs and more."""
    assert len(AGENTS) >= 7
    later, right, wrong = play(AGENTS, runs=100, keys=3, seed=0)
    assert later == len(AGENTS) * 100 * LATER
    assert right >= 0.95 * later and wrong < 0.001 * later


def test_runs_that_begin_alike_stay_apart_once_they_differ() -> None:
    """64 agents with one first prompt, as evaluations start them."""
    recognizer = Recognizer()
    begun = {put(recognizer, "a") for _ in range(64)}
    assert len(begun) == 64
    later = [{put(recognizer, "a", f"{run}")} for run in range(64)]
    for turn in range(5):
        for run, found in enumerate(later):
            found.add(put(recognizer, "a", f"{run}", *(f"{run} {at}" for at in range(turn + 1))))
    assert all(len(found) == 1 for found in later) and set.union(*later) == begun


def test_a_repeated_turn_and_a_branch_stay_with_their_run() -> None:
    recognizer = Recognizer()
    assert len({put(recognizer, *chain) for chain in ("a", "ab", "ab", "abc", "abd")}) == 1


def test_no_call_finds_the_run_of_another_key() -> None:
    recognizer, signs = Recognizer(), Signs("kind", [b"a", b"b"], ["session 1"], ["resp_1"])
    one = recognizer.recognize("one", signs, 0.0, "resp_1")
    other = recognizer.recognize("other", signs, 0.0)
    assert one is not other and one.kind != other.kind
    assert recognizer.recognize("one", signs, 0.0) is one


def test_a_key_with_many_calls_forgets_its_own_first() -> None:
    recognizer = Recognizer(most=100)
    kept = put(recognizer, "a", key="quiet")
    for call in range(1000):
        put(recognizer, f"{call}", key="busy")
    assert put(recognizer, "a", "b", key="quiet") is kept
    assert sum(map(len, recognizer._keys.values())) <= 100


def test_calls_that_are_all_alike_stay_few() -> None:
    recognizer = Recognizer(most=3000)
    for call in range(9000):
        put(recognizer, f"{call % 5}")
    (marks,) = recognizer._keys.values()
    assert {len(alike) for alike in marks.values()} <= {*range(1, 1025)}
    assert sum(map(len, marks.values())) == len(marks) + recognizer._alike <= 3000


@pytest.mark.parametrize("shape", [CODEX, CLAUDE_CODE, OPENCODE])
def test_what_programs_send_names_the_run_though_its_history_is_another(shape: Shape) -> None:
    """As after a summary; the names are of the body, too, or of headers alone."""
    recognizer, first = Recognizer(), next(bodies(shape, "run 1"))
    headers = NO_HEADERS if shape is CLAUDE_CODE else shape.headers
    summed = {**shape.body, shape.key: [{"role": "user", "content": "What was done: much."}]}
    assert put_body(recognizer, first, headers) is put_body(recognizer, summed, headers)


def test_a_key_of_many_runs_names_none() -> None:
    named = read_signs(b'{"messages": [], "prompt_cache_key": "my-app"}', {})
    assert named.names == [] and read_signs(b"[1]", {}) == read_signs(b"\xff", {}) == Signs()


ODD = [
    b'{"input": ["\\"item_reference\\"", 1, null]}',
    b'{"messages": {"a": 1}, "system": [], "metadata": [1]}',
    b'{"messages": 5, "tools": 1, "prompt_cache_key": 1, "previous_response_id": []}',
]


@pytest.mark.parametrize("body", ODD)
def test_odd_bodies_are_read_and_left_to_others_to_refuse(body: bytes) -> None:
    signs = read_signs(body, {"session-id": ""})
    assert signs.names == [] == signs.extends


def test_texts_marked_for_a_cache_or_written_as_one_part_are_the_same() -> None:
    parts = b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "A \\"b\\"."%b}]}]}'
    plain = b'{"messages": [{"role": "user", "content": "A \\"b\\"."}]}'
    chains = [read_signs(parts % mark, {}).chain for mark in (b"", b', "cache_control": {"type": "ephemeral"}')]
    assert chains[0] == chains[1] == read_signs(plain, {}).chain


def test_programs_without_tools_are_recognized_too() -> None:
    _, turns = CALLS_WITHOUT_TOOLS["aider"]
    recognizer = Recognizer()
    assert len(turns) == 3 and len({put_body(recognizer, one) for one in turns}) == 1


@pytest.mark.parametrize("name", ["openai-agents, chats", "AI SDK"])
async def test_a_server_puts_a_runs_calls_together(live: Live, name: str) -> None:
    for body in [*bodies(SDKS[name], "run 1")][:-1]:
        await live.obtain(SDKS[name].path, {**body, "stream": False})
    first, *others = [one.program for one in live.dispatcher.submitted]
    assert first is not None and first.turns == 4 and all(other is first for other in others)


async def test_a_response_goes_on_with_the_run_of_the_one_before(live: Live) -> None:
    first = await live.obtain(RESPONSES, {"input": "Hi."})
    await live.obtain(RESPONSES, {"input": "Go on.", "previous_response_id": first["id"]})
    one, other = [each.program for each in live.dispatcher.submitted]
    assert one is other is not None


@pytest.mark.parametrize("name", SPAWNING)
def test_a_subagent_is_a_program_of_its_own_below_the_one_that_started_it(name: str) -> None:
    recognizer, found = Recognizer(), dict[str, Program]()
    for agent, headers, body in SPAWNING[name].play():
        signs = read_signs(orjson.dumps(body), headers)
        program = recognizer.recognize("key", signs, 0.0)
        assert found.setdefault(agent, program) is program, agent
        assert recognizer.recognize("another", signs, 0.0) not in found.values()
    main, *others = found.values()
    assert main.parent is None and others and all(one.parent is main for one in others)
    assert len({*found.values()}) == len(SPAWNING[name].agents)


def test_a_subagent_of_an_unknown_program_has_no_parent() -> None:
    calls = SPAWNING["opencode"].play()
    headers, body = next((headers, body) for agent, headers, body in calls if agent == "child")
    assert put_body(Recognizer(), body, headers).parent is None
