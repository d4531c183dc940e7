"""Token counts of answers, and bounds of what is made of a backend's bytes."""

import json
from typing import Any

import pytest

from engine.messages import RowUpdate
from server.gateway.merged import LINE, MOST, StreamAggregator
from server.gateway.usage import read_end


def lines(*events: Any) -> bytes:
    return b"".join(b"event: x\r\ndata: %b\r\n\r\n" % json.dumps(one).encode() for one in events)


USAGE = {"completion_tokens": 5, "prompt_tokens": 7}


# what is malformed beside it is no matter; echoes of what a client wrote, and what is no count, are none
COUNTED: dict[bytes, int] = {
    json.dumps({"usage": USAGE}, indent=1).encode(): 5,
    json.dumps({"usage": {"input_tokens": 9, "output_tokens": 6}}).encode(): 6,
    b'{"id": "\xff", "choices": 7, "created": %b, "usage": {"completion_tokens": 5}}' % (b"9" * 5000): 5,
    b'{"text": "\\ud83d, \\\\u and \\ude00\\ud83d", "usage": {"completion_tokens": 5}}': 5,
    b'{"usage": {"completion_tokens": "x", "output_tokens": 6, "cost": 1e999}}': 6,
}
UNCOUNTED: tuple[bytes, ...] = (
    json.dumps({"detail": [{"input": {"usage": USAGE}}]}).encode(),
    json.dumps({"input": {"response": {"usage": USAGE}}, "text": json.dumps({"usage": USAGE})}).encode(),
    b'{"usage": {"completion_tokens": -5}}',
    b'{"usage": {"completion_tokens": 5.5}}',
    b'{"usage": {"completion_tokens": %b}}' % (b"9" * 5000),
    b'{"usage": ' + b"[" * 100_000,
    b'{"x": "\xff", "usage": 3',
    b"",
)
OF_STREAMS: dict[bytes, int | None] = {
    lines({"choices": []}, {"choices": [], "usage": USAGE}) + b"data: [DONE]\n\n": 5,
    b'data:{"usage":{"completion_tokens":5}}\n\ndata: [DONE]\n\n': 5,
    lines({"usage": {"output_tokens": 8}}, {"type": "message_stop"}): 8,
    lines({"type": "response.completed", "response": {"usage": {"output_tokens": 4}}}): 4,
    b'","usage":null}\n\n' + lines({"usage": USAGE}, {"usage": None}): 5,
    lines({"choices": [{"delta": {"content": '"usage": {"completion_tokens": 9}'}}]}): None,
    b"\n" * 100_000: None,
}


TAILS = [
    *((tail, False, tokens) for tail, tokens in COUNTED.items()),
    *((tail, False, None) for tail in UNCOUNTED),
    *((tail, True, tokens) for tail, tokens in OF_STREAMS.items()),
]


@pytest.mark.parametrize(("tail", "streams", "tokens"), TAILS)
def test_tokens_are_read_from_the_answers_own_place(tail: bytes, streams: bool, tokens: int | None) -> None:
    """A body that a backend repeated in its refusal chose the number: one of 150,000,000 took 1.2 GB."""
    assert read_end(tail, streams=streams).tokens == tokens


WORDS = [
    (lines({"choices": [{"finish_reason": "length", "delta": {}}]}, {"usage": USAGE}), True, {"length"}),
    (lines({"choices": [{"finish_reason": "stop", "stop_reason": "length"}]}), True, {"stop"}),
    (b'{"choices": [{"finish_reason": "stop"}, {"finish_reason": "length"}]}', False, {"stop", "length"}),
    (lines({"delta": {"stop_reason": "max_tokens"}}, {"type": "message_stop"}), True, {"max_tokens"}),
    (b'{"stop_reason": "end_turn", "error": null}', False, {"end_turn"}),
    (lines({"response": {"incomplete_details": {"reason": "max_output_tokens"}}}), True, {"max_output_tokens"}),
    (lines({"response": {"error": {"message": "x"}}}), True, {"error"}),
    (lines({"delta": "length"}), True, set()),
    (b'{"choices": [{"finish_reason": ["length"]}]}', False, set()),
    (b'{"choices": 1}', False, set()),
    (b'{"choices": [], "usage": "many", "id": 3, "stop_reason": "end_turn", "delta": []}', False, {"end_turn"}),
]


@pytest.mark.parametrize(("tail", "streams", "said"), WORDS)
def test_a_backends_own_words_say_why_an_answer_ended(tail: bytes, streams: bool, said: set[str]) -> None:
    assert read_end(tail, streams=streams).reasons == said


STATED_ENDS = [
    ({"choices": [{"finish_reason": "stop"}], "usage": 1}, True),
    ({"type": "response.incomplete", "response": {"id": 1}}, True),
    ({"type": "message_stop"}, True),
    ({"type": "response.created", "response": {"output": 1}}, False),
    ({"choices": [{"finish_reason": None, "delta": {"content": '"finish_reason": "stop"'}}]}, False),
    ({"error": {"message": "x"}}, False),
]


@pytest.mark.parametrize(("event", "finished"), STATED_ENDS)
def test_a_stream_that_states_its_end_was_not_cut(event: Any, finished: bool) -> None:
    assert read_end(lines(event), streams=True).finished is finished


def test_tokens_without_ids_are_a_number() -> None:
    joined = RowUpdate.join([RowUpdate(1, unnamed=10**18), RowUpdate(1, (4, 5)), RowUpdate(1, unnamed=3)])
    assert (joined.tokens, joined.token_ids) == (10**18 + 5, (4, 5))


def chunk(content: Any, reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": reason}
    return b"data: %b\n\n" % json.dumps({"choices": [choice], "usage": USAGE}).encode()


def test_a_long_answer_is_put_together_once() -> None:
    """20 MB in 10,000 events were 100 GB of copies."""
    merged = StreamAggregator()
    for _ in range(10_000):
        merged.add(chunk("x" * 2000))
    merged.add(chunk("", "stop"))
    whole = merged.whole()
    assert whole is not None and len(json.loads(whole)["choices"][0]["message"]["content"]) == 20_000_000


FOREIGN = [
    chunk("x" * 2**16) * (MOST // 2**16 + 1),
    b"x" * (LINE + 1),
    b"data: " + b'{"choices":' * 1000 + b"1" + b"}" * 1000 + b"\n",
    b'data: {"choices":[{"index":0,"delta":' + b'{"a":' * 1000 + b"1" + b"}" * 1000 + b"}]}\n",
    chunk("a") + chunk(5),
    chunk("a") + chunk({"a": 1}),
    chunk(["a"]) + chunk("b"),
    b'data: {"choices":[{"index":[]}]}\n',
]


@pytest.mark.parametrize("stream", FOREIGN)
def test_of_a_foreign_or_endless_stream_no_answer_is_made(stream: bytes) -> None:
    merged = StreamAggregator()
    for start in range(0, len(stream), 2**17):
        merged.add(stream[start : start + 2**17])
        assert len(merged._rest) <= LINE
    merged.add(chunk("c", "stop"))
    assert merged.whole() is None


ITEMS = [{"type": "reasoning", "id": "rs_2", "content": {"id": "resp_3"}}, {"type": "message", "id": "msg_3"}]


WITH_IDS = [
    (json.dumps({"id": "resp_1", "output": ITEMS}).encode(), False),
    (lines({"type": "response.completed", "response": {"id": "resp_1", "output": ITEMS}}), True),
]


@pytest.mark.parametrize(("tail", "streams"), WITH_IDS)
def test_the_ids_by_which_later_calls_go_on_are_read(tail: bytes, streams: bool) -> None:
    assert read_end(tail, streams=streams).ids == ("resp_1", "rs_2", "msg_3")
    assert read_end(tail[20:], streams=streams).ids == ()
