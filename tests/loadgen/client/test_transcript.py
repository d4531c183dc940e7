"""One streamed answer: its framing, and what its events tell."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from loadgen.client.request import Foretold
from loadgen.client.transcript import RequestError, Transcript, error_message
from tests.loadgen.scripted import DONE, finish, role, said, usage

NAMED = b"event: x\nid: 7\ndata:" + said("b")[6:]
STREAM = b": welcome\n\n" + said("\u732b\U0001f600\u00e9") + NAMED + finish() + usage(3, 5)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@given(cuts=st.lists(st.integers(0, len(STREAM))))
def test_cuts_anywhere_give_the_same_answer(end: bytes, cuts: list[int]) -> None:
    heard, stream = Transcript(), STREAM.replace(b"\n", end)
    for a, b in pairwise([0, *sorted(cuts), len(stream)]):
        heard.feed(stream[a:b], 1.0)
    heard.close()
    assert (heard.text, heard.token_times, heard.output_tokens) == ("\u732b\U0001f600\u00e9b", [1.0, 1.0], 5)


def test_a_line_that_the_stream_ends_in_is_dropped() -> None:
    heard = Transcript()
    heard.feed(said("a") + said("b").rstrip(b"\n"), 1.0)
    assert heard.text == "a"
    heard.feed(b"\n", 2.0)
    assert (heard.text, heard.token_times) == ("ab", [1.0, 2.0])


def event(**fields: object) -> bytes:
    return b"data: %b\n\n" % json.dumps(fields).encode()


def delta(**fields: object) -> bytes:
    return event(choices=[{"index": 0, "delta": fields}])


def test_only_output_counts_as_a_token() -> None:
    heard = Transcript()
    for now, data in enumerate([role(), said("a"), b": keep-alive\n\n", said("b"), finish(), usage(3, 5), DONE]):
        heard.feed(data, float(now))
    heard.close()
    assert heard.token_times == [1, 3]
    assert (heard.end, heard.text, heard.prompt_tokens, heard.output_tokens) == (3, "ab", 3, 5)
    assert heard.done


def test_every_kind_of_output_counts() -> None:
    heard = Transcript()
    outputs = [delta(content="a"), delta(reasoning_content="b"), delta(reasoning="c")]
    outputs += [delta(tool_calls=[{"index": 0}]), event(choices=[{"index": 0, "text": "d"}])]
    silent = event(choices=[{"index": 0, "text": ""}])
    nothing = [delta(content=None), delta(), silent, event(choices=[]), event(), b"data\n\n"]
    for now, data in enumerate(outputs + nothing):
        heard.feed(data, float(now))
    assert (heard.token_times, heard.text) == ([0, 1, 2, 3, 4], "abcd")


def test_events_that_arrive_together_have_one_time_each_the_last_usage_counts_and_queue_time_is_seconds() -> None:
    heard = Transcript()
    heard.feed(said("a") + said("b"), 2.0)
    heard.feed(usage(3, 1) + usage(3, 2) + event(choices=[], metrics={"queue_time_ms": 250.0}), 3.0)
    assert (heard.token_times, heard.output_tokens, heard.queue_time) == ([2, 2], 2, 0.25)


def test_the_end_that_a_server_expected_is_read_where_it_tells_it() -> None:
    heard, end = Transcript(), {"median": 5.0, "low": 2.0, "high": 6.0}
    heard.feed(event(choices=[], metrics={"estimate": {"expected_completion_s": end}}), 0.0)
    assert heard.foretold == Foretold(2.0, 5.0, 6.0)
    heard.feed(event(choices=[], metrics={"estimate": {"expected_completion_s": None}}), 0.0)
    assert heard.foretold is None


def test_an_answer_without_output_ends_when_its_stream_does() -> None:
    heard = Transcript()
    heard.feed(finish(), 1.0)
    heard.feed(usage(3, 1) + DONE, 2.0)
    heard.close()
    assert (heard.token_times, heard.end) == ([], 2)


def test_a_finish_reason_is_an_end_as_well_but_silence_is_not() -> None:
    heard = Transcript()
    heard.feed(said("a"), 0.0)
    with pytest.raises(RequestError) as caught:
        heard.close()
    assert caught.value.failure.kind == "closed"
    heard.feed(finish("length"), 1.0)
    heard.close()


@pytest.mark.parametrize("error", [{"message": "overloaded", "code": 500}, "overloaded"])
def test_an_error_event_fails_the_request(error: object) -> None:
    with pytest.raises(RequestError) as caught:
        Transcript().feed(event(error=error), 0.0)
    assert (caught.value.failure.kind, caught.value.failure.message) == ("server", "overloaded")


@pytest.mark.parametrize("data", [b"data: {\n\n", b"data: []\n\n", b'data: {"choices":1}\n\n', b"data: \xff\n\n"])
def test_what_cannot_be_read_fails_the_request(data: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        Transcript().feed(data, 0.0)
    assert caught.value.failure.kind == "protocol"


ERROR_BODIES = [
    (b'{"error":{"message":"m","type":"t"}}', "m"),
    (b'{"error":"Unauthorized"}', "Unauthorized"),
    (b'{"object":"error","message":"flat"}', "flat"),
    (b"<html>\n  busy\n</html>\n", "<html> busy </html>"),
    (b"\xff", "\ufffd"),
    (b"", "no message"),
]


@pytest.mark.parametrize(("body", "message"), ERROR_BODIES)
def test_error_bodies_of_all_servers_are_understood(body: bytes, message: str) -> None:
    assert error_message(body) == message
