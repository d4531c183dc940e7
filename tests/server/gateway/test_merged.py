"""What a gateway reads of bodies, and whole answers that are made of streams."""

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from server.api.errors import ApiError
from server.gateway.merged import StreamAggregator, as_stream
from server.gateway.meta import MOST_WORDS, TABLE, read_meta

CHAT = "/v1/chat/completions"


def merged(*events: Any) -> Any:
    """The answer of a stream that comes in pieces of seven bytes; None where it is not whole."""
    stream = b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in events) + b"data: [DONE]\n\n"
    answer = StreamAggregator()
    for start in range(0, len(stream), 7):
        answer.add(stream[start : start + 7])
    whole = answer.whole()
    return None if whole is None else json.loads(whole)


def event(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "c1", "object": "chat.completion.chunk", "created": 3, "model": "m", "choices": [*choices]} | more


def delta(index: int = 0, reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"index": index, "delta": fields, "logprobs": None, "finish_reason": reason}


USAGE = {"prompt_tokens": 4, "completion_tokens": 5, "prompt_tokens_details": None}


def choice(index: int, reason: str, **said: str) -> dict[str, Any]:
    message = {"role": "assistant", **said}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": reason}


def test_two_chats_with_reasoning_are_put_together() -> None:
    assert merged(
        event(delta(0, role="assistant", content="")),
        event(delta(1, role="assistant", content="")),
        event(delta(1, content="b"), system_fingerprint="f"),
        event(delta(0, reasoning_content="be"), delta(0, reasoning_content="cause")),
        event(delta(0, content="a "), delta(1, "length", content="")),
        event(delta(0, "stop", content="\u00e9") | {"stop_reason": 7}),
        event(usage=USAGE),
    ) == {
        **{"id": "c1", "object": "chat.completion", "created": 3, "model": "m", "system_fingerprint": "f"},
        "usage": USAGE,
        "choices": [
            choice(0, "stop", content="a \u00e9", reasoning_content="because") | {"stop_reason": 7},
            choice(1, "length", content="b"),
        ],
    }


def test_a_whole_answer_has_the_nulls_of_its_stream_and_no_others() -> None:
    """vLLM's first chunk says `prompt_token_ids: null`, as its whole answers do: it was left out."""
    answer = merged(
        event(delta(content="a"), prompt_token_ids=None, system_fingerprint=None, usage=None, error=None),
        event(delta(reason="stop"), system_fingerprint="f"),
        event(usage=USAGE | {"total_tokens": 9}, system_fingerprint=None),
    )
    assert answer.keys() == {*event(), "prompt_token_ids", "system_fingerprint", "usage", "error"}
    assert (answer["prompt_token_ids"], answer["system_fingerprint"]) == (None, "f")
    assert ChatCompletion.model_validate(answer, strict=True).service_tier is None


def test_calls_of_tools_come_in_pieces_which_may_begin_together() -> None:
    def call(index: int, arguments: str, **more: Any) -> dict[str, Any]:
        named = {"name": more.pop("name")} if "name" in more else {}
        return {"index": index, "function": named | {"arguments": arguments}} | more

    (one,) = merged(
        event(delta(role="assistant", content=None, tool_calls=[call(0, "", id="t0", type="function", name="f")])),
        event(delta(tool_calls=[call(0, '{"a"'), call(1, "{", id="t1", type="function", name="g")])),
        event(delta(tool_calls=[call(1, "}"), call(0, ": 1}", name=None)])),
        event(delta(reason="tool_calls")),
        event(usage=USAGE),
    )["choices"]
    made = [
        {"id": "t0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"id": "t1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]
    assert one["message"] == {"role": "assistant", "content": None, "tool_calls": made}


def test_log_probabilities_are_joined_in_both_apis() -> None:
    def one(token: str) -> dict[str, Any]:
        return {"content": [{"token": token, "logprob": -0.1, "top_logprobs": []}]}

    (chat,) = merged(
        event(delta(content="a") | {"logprobs": one("a")}),
        event(delta(content="b") | {"logprobs": one("b")}),
        event(delta(reason="stop")),
        event(usage=USAGE),
    )["choices"]
    assert [part["token"] for part in chat["logprobs"]["content"]] == ["a", "b"]

    def text(token: str, offset: int, reason: str | None = None) -> dict[str, Any]:
        logprobs = {"tokens": [token], "token_logprobs": [-1.5], "text_offset": [offset], "top_logprobs": [{token: -1}]}
        return {"index": 0, "text": token, "logprobs": logprobs, "finish_reason": reason}

    answer = merged(
        event(text("x", 0), object="text_completion"),
        event(text("yz", 1, "stop"), object="text_completion", usage=USAGE),
    )
    assert (answer["object"], answer["choices"][0]["text"]) == ("text_completion", "xyz")
    assert answer["choices"][0]["logprobs"]["text_offset"] == [0, 1]
    assert answer["choices"][0]["logprobs"]["tokens"] == ["x", "yz"]


LACKING = [
    (event(delta(reason="stop", content="a"), usage=None),),
    (event(delta(reason="stop", content="a")),),  # without usage, which the whole answer would have
    (event(delta(content="a")), event(usage=USAGE)),  # without its end
    (event(delta(content="a")), {"error": {"message": "it broke"}}),
    (event(delta(reason="stop", content="a")), {"choices": 3}, event(usage=USAGE)),  # none of OpenAI's events
    (event({"index": 0, "delta": "a", "finish_reason": "stop"}), event(usage=USAGE)),
    (),
]


@pytest.mark.parametrize("events", LACKING)
def test_a_stream_that_lacks_something_makes_no_whole_answer(events: tuple[Any, ...]) -> None:
    assert merged(*events) is None


def test_a_call_is_asked_as_a_stream_where_nothing_can_be_lost() -> None:
    body = b'{"messages":  [{"content": "\\u00e9"}], "n": 2, "temperature": 0.10}'
    asked = as_stream(CHAT, read_meta(body), body)
    assert asked is not None
    assert b'[{"content": "\\u00e9"}]' in asked and b"0.10" in asked
    assert json.loads(asked) == json.loads(body) | {"stream": True, "stream_options": {"include_usage": True}}
    as_it_was = json.dumps({"stream": False, "max_tokens": 3}).encode()
    assert json.loads(as_stream("/v1/completions", read_meta(as_it_was), as_it_was) or b"")["stream"] is True


PASSED_ON = [
    (CHAT, {"stream": True}),
    (CHAT, {"stream": "yes"}),
    (CHAT, {"return_token_ids": True}),
    (CHAT, {"prompt_logprobs": 1}),
    ("/v1/completions", {"echo": True}),
    ("/v1/responses", {}),
    ("/v1/messages", {}),
]


@pytest.mark.parametrize(("path", "fields"), PASSED_ON)
def test_any_other_call_is_passed_as_it_is(path: str, fields: dict[str, Any]) -> None:
    body = json.dumps(fields).encode()
    assert as_stream(path, read_meta(body), body) is None


def test_the_texts_of_messages_parts_and_prompts_are_read_in_order() -> None:
    chat = read_meta(
        b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "fix this"}]}, {"content": "now"}]}'
    )
    plain = read_meta(b'{"prompt": "fix this now"}')
    assert chat.words() == plain.words() and len(plain.words()) == 3
    assert all(0 <= word < TABLE for word in plain.words())
    assert len(read_meta(b'{"input": "%s"}' % (b"a b " * 9000)).words()) == MOST_WORDS


def test_words_are_told_apart_in_scripts_without_spaces_and_whatever_their_case() -> None:
    words = read_meta('{"prompt": "翻译成English，列出"}'.encode()).words()
    assert len(words) == 6 and words[3] == read_meta(b'{"prompt": "ENGLISH"}').words()[0]
    assert words[4:] == read_meta('{"input": "列 出"}'.encode()).words()


def test_the_longest_answer_is_that_of_any_api() -> None:
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        assert [read_meta(json.dumps({name: most}).encode()).most for most in (7, "many")] == [7, None]
    assert read_meta(b'{"n": 3}').choices == 3 and read_meta(b'{"n": -3}').choices == 1


@pytest.mark.parametrize("body", [b"", b"[]", b"nonsense", b'{"model": "\xff"}'])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError, match="not valid JSON|Expected `object`"):
        read_meta(body)


def test_pictures_do_not_make_a_prompt_endless() -> None:
    assert read_meta(b'{"messages": [{"content": "%s"}]}' % (b"x" * 400_000)).prompt_tokens == 2**15
    assert read_meta(b'{"prompt": "%s"}' % (b"x" * 398)).prompt_tokens == 100


def test_a_deadline_and_a_priority_are_checked() -> None:
    assert read_meta(b'{"deadline_ms": 1500, "priority": -2.0}').priority == -2
    for body in (b'{"deadline_ms": "soon"}', b'{"priority": 1.5}'):
        with pytest.raises(ApiError, match="deadline_ms|priority"):
            read_meta(body)


def test_a_conversation_has_a_short_name_of_its_own_for_each_client() -> None:
    long = read_meta(b'{"prompt_cache_key": "%s"}' % (b"k" * 10**6))
    names = [*map(long.read_cache_key, "ab"), read_meta(b'{"prompt_cache_key": "k"}').read_cache_key("a")]
    assert len({*names}) == 3 and {*map(len, names)} == {64}
    for none in (b"{}", b'{"prompt_cache_key": ""}', b'{"prompt_cache_key": null}', b'{"prompt_cache_key": [1]}'):
        assert read_meta(none).read_cache_key("a") == ""


def tool(index: int | None, name: str | None, arguments: str) -> dict[str, Any]:
    call: dict[str, Any] = {"function": {"name": "f", "arguments": arguments} if name else {"arguments": arguments}}
    return call | ({} if index is None else {"index": index}) | ({} if name is None else {"id": name})


IDENTIFIED = [
    ([tool(0, "a", "{}"), tool(0, "b", "[1]")], [("a", "{}"), ("b", "[1]")]),  # as Ollama has them
    ([tool(0, "a", "{"), tool(0, "", "}"), tool(0, "b", "{"), tool(0, None, "}")], [("a", "{}"), ("b", "{}")]),
    ([tool(None, "a", "{"), tool(None, None, "}"), tool(None, "b", "{}")], [("a", "{}"), ("b", "{}")]),
    ([tool(0, "a", "{"), tool(1, "b", "{"), tool(0, "a", "}"), tool(1, None, "}")], [("a", "{}"), ("b", "{}")]),
    ([tool(0, None, "{}")], None),  # without an id
    ([tool(0, "a", "{}"), tool(0, None, "{}")], None),  # two in one
    ([tool(0, "a", "")], None),
    ([tool(0, "a", "{}"), {"index": 0, "function": {"name": "g", "arguments": ""}}], None),  # a name in pieces
]


@pytest.mark.parametrize(("calls", "found"), IDENTIFIED)
def test_calls_are_known_by_their_ids_or_not(calls: list[dict[str, Any]], found: list[tuple[str, str]] | None) -> None:
    """Two of one index used to be made one, whose arguments were no JSON."""
    answer = merged(
        *(event(delta(tool_calls=[call])) for call in calls), event(delta(reason="tool_calls")), event(usage=USAGE)
    )
    made = None if answer is None else answer["choices"][0]["message"]["tool_calls"]
    assert found == (made and [(one["id"], one["function"]["arguments"]) for one in made])
    assert made is None or not any("index" in one for one in made)


def test_a_call_that_was_cut_off_is_passed_on_as_it_is() -> None:
    begun = event(delta(tool_calls=[tool(0, "a", "{")]))
    assert merged(begun, event(delta(reason="stop")), event(usage=USAGE)) is None
    answer = merged(begun, event(delta(reason="length")), event(usage=USAGE))
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == "{"
