"""Text to calls, however the text is cut into pieces."""

from collections.abc import Callable, Sequence

import orjson
import pytest
from hypothesis import given, strategies as st

from server.api.input.tools import BETWEEN, CALL_TAIL, call_head, call_text
from server.api.output.reading import CallPiece, FoundCalls, GuaranteedCalls, Piece, Reader, split

Calls = list[tuple[str, str]]  # names and arguments
TOOLS: dict[str, dict[str, object]] = {
    "f": {
        "properties": {
            "s": {"type": "string"},
            "i": {"type": "integer"},
            "b": {"type": "boolean"},
            "l": {"type": "array"},
            "n": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "e": {"$ref": "#/$defs/e"},
        },
        "$defs": {"e": {"enum": [1, 2]}},
    },
    "weather-now": {},
}


def found() -> Reader:
    return FoundCalls(TOOLS)


def one_call(arguments: str) -> str:
    """A call of f in its tag, with these arguments."""
    return tagged(f'{{"name": "f", "arguments": {arguments}}}')


def read(reader: Reader, parts: Sequence[str]) -> tuple[str, Calls]:
    """The text and the calls that come out."""
    pieces: list[Piece] = []
    for place, part in enumerate(parts):
        pieces += reader.push(part, last=place == len(parts) - 1)
    return joined(pieces)


def joined(pieces: Sequence[Piece]) -> tuple[str, Calls]:
    text, calls = "", list[list[str]]()
    for piece in pieces:
        match piece:
            case str(more):
                text += more
            case CallPiece(index, more, ""):
                assert index == len(calls) - 1
                calls[-1][1] += more
            case CallPiece(index, arguments, _, name):
                assert index == len(calls)
                calls.append([name, arguments])
    return text, [(name, arguments) for name, arguments in calls]


def cut(text: str, places: Sequence[int]) -> list[str]:
    ends = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[begin:end] for begin, end in zip(ends, ends[1:], strict=False)]


CALLED = ("f", '{"x":"}\\n</tool_call"}')
CALL = call_text(*CALLED)


def tagged(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def coder(**values: str) -> str:
    """A call as Qwen3-Coder writes it."""
    given = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in values.items())
    return f"<function=f>\n{given}</function>"


AS_WRITTEN = {
    "a number of 20 digits": '{"c": 36893488147419103233, "d": 1.10}',
    "marks in a string": '{"s": "} </tool_call> <tool_call> ] {\\"x\\": \u2028 é 🙂"}',
}
BARE_ONE, BARE_NONE = '{"name": "f", "arguments": {"i": 1}}', '{"name": "f", "arguments": {}}'
ONE, TWO, NONE = ("f", '{"i": 1}'), ("f", '{"i": 2}'), ("f", "{}")
VALUES = coder(s="5", i="36893488147419103233", b="True", l='[1, "a"]', n="None", e="2", other="7")
TYPED = '{"s": "5", "i": 36893488147419103233, "b": true, "l": [1, "a"], "n": null, "e": 2, "other": "7"}'
AS_TEXT = one_call(r'"{\"c\": \"Rome\", \"n\": 36893488147419103233}"')
OTHERS = tagged('{"name": "f", "arguments": {"i": 1}}\n{"name": "weather-now", "arguments": {}}')
MISTRAL = '[TOOL_CALLS]f[ARGS]{"s": "[ARGS]"}[TOOL_CALLS]weather-now[CALL_ID]a1b2c3d4e[ARGS]{}'
MARKS_AS_JSON = r'{"s": "if \"a\":\n    <b></tool_call> </function> {\""}'
MARKS = 'if "a":\n    <b></tool_call> </function> {"'
FORMS: dict[str, tuple[str, Calls]] = {
    # what: (an answer that is calls alone, the calls)
    **{what: (one_call(one), [("f", one)]) for what, one in AS_WRITTEN.items()},
    "a call": (CALL, [CALLED]),
    "two calls": (f"{CALL}\n{CALL}\n", [CALLED, CALLED]),
    "no end": ('<tool_call>{"name": "f", "arguments": {}}', [NONE]),
    "no arguments": ('<tool_call>{"name": "f"}</tool_call>', [NONE]),
    "another order": ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', [("f", '{"a": 1}')]),
    "a list": ('<tool_call>[{"name": "f"}, {"name": "f"}]</tool_call>', [NONE, NONE]),
    "parameters for arguments": (tagged('{"name": "f", "parameters": {"c": "Rome"}}'), [("f", '{"c": "Rome"}')]),
    "arguments as a JSON text": (AS_TEXT, [("f", '{"c": "Rome", "n": 36893488147419103233}')]),
    "empty arguments": (one_call('""'), [NONE]),
    "no arguments, as null": (one_call("null"), [NONE]),
    "several calls in a tag": (OTHERS, [ONE, ("weather-now", "{}")]),
    "a raw break, a tab": (one_call('{"s": "a\nb\tc"}'), [("f", r'{"s": "a\u000ab\u0009c"}')]),
    "no closing mark": ('<tool_call>{"name": "f", "arguments": {"i": 1}}\n</tool_c', [ONE]),
    "a type and an id beside": (tagged('{"type": "function", "id": "x", "name": "f"}'), [NONE]),
    "Qwen3-Coder": (tagged(coder(s="Rome")), [("f", '{"s": "Rome"}')]),
    "Qwen3-Coder without the mark": (f"{coder(s='Rome')}\n{coder()}", [("f", '{"s": "Rome"}'), NONE]),
    "Qwen3-Coder, many in a tag": (tagged(coder(i="1") + "\n" + coder(i="2")), [ONE, TWO]),
    "Qwen3-Coder's values by their types": (tagged(VALUES), [("f", TYPED)]),
    "Qwen3-Coder's value of another type": (tagged(coder(i="many", n="5")), [("f", '{"i": "many", "n": "5"}')]),
    "Qwen3-Coder's marks in a value": (tagged(coder(s=MARKS)), [("f", MARKS_AS_JSON)]),
    "Qwen3-Coder's marks in a bare value": (
        coder(s="x </function> y", i="1"),
        [("f", '{"s": "x </function> y", "i": 1}')],
    ),
    "Mistral's list": (f"[TOOL_CALLS][{BARE_ONE}, {BARE_NONE}]", [ONE, NONE]),
    "Mistral's names": (MISTRAL, [("f", '{"s": "[ARGS]"}'), ("weather-now", "{}")]),
    "Mistral's names without their marks": ('f{"i": 1}weather-now{}', [ONE, ("weather-now", "{}")]),
    "Mistral's list without its mark": (f"[{BARE_ONE}]", [ONE]),
    "Llama 3's object": ('{"name": "f", "parameters": {"s": "}"}}', [("f", '{"s": "}"}')]),
    "Llama 3's object with a type": ('{"type": "function", "name": "f", "parameters": {}}', [NONE]),
    "Llama 3's objects": (
        '\n{"name": "f", "parameters": {"i": 1}}; {"name": "f", "parameters": {"i": 2}}\n',
        [ONE, TWO],
    ),
    "Llama 3's tag": ('<|python_tag|>{"name": "f", "parameters": {}}', [NONE]),
}

NO_CALLS = [
    *("", "Hello. \n", "a <tool_cal", "[1, 2]", "f", "f(x) is {x}.", "The mark is [TOOL_CALLS], and so on."),
    *("<tool_call>f(1)</tool_call> ok", 'Hm. <tool_call>{"name": "f", "argum'),  # no JSON, and half of it
    *map(tagged, ("[]", "3", '["f"]', '{"name": "g"}', '{"name": 3, "arguments": {}}', "[" * 5000)),
    tagged('{"name": "f", "city": "Rome"}'),  # other keys in place of arguments
    tagged('{"name": "f", "arguments": {}}{"name": "g", "arguments": {}}'),  # one of several is of no tool
    *map(one_call, ('"x"', '{"i": NaN}', "[1]")),
    # objects that are no bare calls
    *('{"name": "f", "age": 3}', '{"name": "f"}', '{"name": "g", "parameters": {}}'),
    *('{"name": "f", "parameters": {}} is how to call it.', 'Say {"name": "f", "parameters": {}}'),
    coder(s="x").replace("function=f", "function=g"),
    coder(s="x")[:-20],
]


@pytest.mark.parametrize("sample", FORMS.values(), ids=FORMS)
@given(places=st.lists(st.integers(0, 400), max_size=6))
def test_each_form_of_call_is_found_as_written(sample: tuple[str, Calls], places: list[int]) -> None:
    text, called = sample
    assert read(found(), cut(text, places)) == ("", called)
    for _, arguments in called:
        assert isinstance(orjson.loads(arguments), dict)


@pytest.mark.parametrize("text", NO_CALLS, ids=lambda text: text[:60])
@given(places=st.lists(st.integers(0, 400), max_size=6))
def test_what_is_no_call_is_text_as_it_came(text: str, places: list[int]) -> None:
    assert read(found(), cut(text, places)) == (text, [])


def test_a_call_behind_one_that_is_broken_is_found() -> None:
    broken = '<tool_call>{"name": "f", "arguments": {"s": "x}}</tool_call>\n'
    text, calls = read(found(), [broken, CALL])
    assert (text, calls) == (broken.rstrip(), [CALLED])


def test_text_that_cannot_be_a_bare_call_is_said_at_once() -> None:
    for begin in ("Hello", '{"city": ', "[1", "{}", "for"):
        assert joined(found().push(begin, last=False)) == (begin.rstrip(), [])


@given(places=st.lists(st.integers(0, 200), max_size=6))
def test_text_around_a_call_is_said(places: list[int]) -> None:
    text, calls = read(found(), cut(f"One.\n\n{CALL}\nTwo. ", places))
    assert (text.split(), calls) == (["One.", "Two."], [CALLED])


GUARANTEED: dict[str, tuple[str, str, Calls]] = {
    "a call": (CALL, "", [CALLED]),
    "two calls": (f"{CALL}{BETWEEN}{call_text('weather-now', '{}')}", "", [CALLED, ("weather-now", "{}")]),
    "an answer": ('{"a": "<tool_call>"}', '{"a": "<tool_call>"}', []),
    "nothing": ("", "", []),
    "cut in the mark": ("<tool_c", "", []),
    "cut in the head": ('<tool_call>\n{"name": "f', "", []),
    "cut in the arguments": (CALL[:48], "", [("f", CALL[len(call_head("f")) : 48])]),
    "cut in the tail": (CALL[:-3], "", [CALLED]),
    "cut before the tail": (CALL[:-14], "", [CALLED]),
    "cut after a brace": (CALL[:-13], "", [CALLED]),
}


@pytest.mark.parametrize("sample", GUARANTEED.values(), ids=GUARANTEED)
@given(places=st.lists(st.integers(0, 200), max_size=6))
def test_guaranteed_calls_are_read_if_cut(sample: tuple[str, str, Calls], places: list[int]) -> None:
    text, said, called = sample
    assert read(GuaranteedCalls(), cut(text, places)) == (said, called)


def test_arguments_that_are_cut_short_are_told_as_far_as_they_go() -> None:
    text = call_text("f", '{"city":"Graz","day":"today"}')
    begin = text.index('{"city')
    arguments = text[begin : -len(CALL_TAIL)]
    for end in range(begin, len(text) + 1):
        assert read(GuaranteedCalls(), [text[:end]]) == ("", [("f", text[begin:end][: len(arguments)])])


@pytest.mark.parametrize("make", [found, GuaranteedCalls], ids=["found", "guaranteed"])
def test_every_call_has_an_id_of_its_own(make: Callable[[], Reader]) -> None:
    other = call_text("f", '{"x":"another"}')
    pieces = make().push(f"{CALL}{BETWEEN}{other}", last=True)
    ids = [piece.id for piece in pieces if isinstance(piece, CallPiece) and piece.id]
    assert len(set(ids)) == 2


@given(st.text("ab<", max_size=12), st.text("ab<", min_size=1, max_size=3))
def test_what_is_held_back_may_still_become_the_mark(text: str, mark: str) -> None:
    before, there, after = split(text, mark)
    assert before + (mark if there else "") + after == text
    assert there == (mark in text)
    if not there:
        assert mark.startswith(after)
        assert not any(mark.startswith(text[place:]) for place in range(len(before)))
