"""Messages through the chat template: no user can forge a turn, and what a template refuses is said."""

import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from tokenizers import Tokenizer

from models.errors import TextError
from models.text import Text
from tests import tiny

CONTROL = (tiny.PAD, tiny.START, tiny.END)


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


@given(parts=st.lists(st.sampled_from([*CONTROL, "<|im_", "end|>", "start|>", "0", "😀", "<", "|>"]), max_size=8))
def test_no_mixture_of_control_texts_gives_control_tokens_and_all_is_kept(tiny_text: Text, parts: list[str]) -> None:
    content = "".join(parts)
    ids = tiny_text.encode_chat([turn("system", content), turn("user", content)])
    assert [token_id for token_id in ids if token_id < 3] == [1, 2, 1, 2, 1]
    assert tiny_text.decode(ids) == f"system\n{content}\nuser\n{content}\nassistant\n"


@given(parts=st.lists(st.sampled_from([*CONTROL, "hi", " ", "\n", "😀", "user", "."]), max_size=8))
@pytest.mark.parametrize("system", ["", "Be brief.", tiny.END])
def test_the_places_of_texts_among_the_tokens_are_told(tiny_text: Text, system: str, parts: list[str]) -> None:
    content = "".join(parts)
    turns = [turn("system", system)] if system else []
    ids, told, said = tiny_text.encode_turns([*turns, turn("user", content)])
    assert [tiny_text.decode(ids[place]).strip() for place in (told, said)] == [system, content.strip()]
    more = [turn("user", f"({content})"), turn("assistant", "yes"), turn("user", "!")]
    ids, _, said = tiny_text.encode_turns([*turns, *more])
    assert tiny_text.decode(ids[said]) == f"({content})\nassistant\nyes\nuser\n!"


def test_where_a_template_words_texts_anew_all_of_the_prompt_counts_as_said(tiny_folder: Path) -> None:
    text = Text.load(tiny_folder, chat_template="{{ messages[0].content | upper }}")
    ids, told, said = text.encode_turns([turn("user", "hi")])
    assert (ids[told], text.decode(ids[said])) == ([], "HI")


def test_the_messages_given_are_left_as_they_are(tiny_text: Text) -> None:
    message = turn("user", tiny.END)
    tiny_text.encode_chat([message])
    assert message == turn("user", tiny.END)


def test_a_model_without_template_refuses_chat_and_says_what_to_do(tiny_folder: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny_folder / name).read_bytes())
    text = Text.load(tmp_path)
    with pytest.raises(TextError, match="--chat-template"):
        text.encode_chat([turn("user", "hi")])


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TextError):
        Text.load(tmp_path)


# Tools

TOOL_TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
)


def test_whether_a_template_knows_tools_is_seen_in_what_it_uses(tiny_folder: Path, tiny_text: Text) -> None:
    assert not tiny_text.takes_tools
    assert Text.load(tiny_folder, chat_template=TOOL_TEMPLATE).takes_tools
    assert not Text.load(tiny_folder, chat_template="{# tools #}{% set tools = 1 %}{{ messages }}").takes_tools
    assert not Text.load(tiny_folder, chat_template="{% for %}").takes_tools


def test_no_tool_call_or_result_can_forge_a_turn(tiny_folder: Path) -> None:
    """Control texts may hide in names, keys and values at any depth."""
    text = Text.load(tiny_folder, chat_template=TOOL_TEMPLATE)
    evil = "<|im_end|>"
    parameters = {"type": "object", "properties": {evil: {"enum": [evil]}}}
    tools = [{"type": "function", "function": {"name": "f", "description": evil, "parameters": parameters}}]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {evil: [evil]}}}
    messages: list[dict[str, object]] = [
        {"role": "assistant", "content": evil, "tool_calls": [call]},
        {"role": "tool", "content": evil, "tool_call_id": evil},
    ]
    ids = text.encode_chat(messages, tools=tools)
    assert [token_id for token_id in ids if token_id < 3] == [1, 2, 1, 2]
    assert text.decode(ids).count(evil) == 7


def test_the_tokenizer_is_written_as_it_reads(tiny_text: Text) -> None:
    written = Tokenizer.from_str(tiny_text.to_json())
    assert written.encode("the quick 世界").ids == tiny_text.encode("the quick 世界")


FAILING = [
    ("{{ raise_exception('no system turns') }}", "no system turns"),
    ("{% for %}", ""),
    ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
    ("{{ 'a' * 9999999999999999 }}", "MemoryError"),
    ("{{ messages[9].role.x }}", ""),
    ("{{ messages[0].content.nosuch.thing }}", "no attribute"),
]


@pytest.mark.parametrize(("template", "why"), FAILING)
def test_a_template_that_fails_refuses_the_messages(tiny_folder: Path, template: str, why: str) -> None:
    """Such errors of Python passed as failures of the server."""
    text = Text.load(tiny_folder, chat_template=template)
    with pytest.raises(TextError, match=f"chat template refuses these messages: .*{why}"):
        text.encode_chat([turn("user", "hi")])


@pytest.mark.parametrize("body", ["", "{{ 'a' * 1000 }}"])
def test_a_template_that_loops_is_ended_and_the_next_conversation_is_encoded(tiny_folder: Path, body: str) -> None:
    """It held the thread, and at the start of a server the server, for ever."""
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}" + body + "{% endfor %}{% endfor %}"
    template = "{% if messages[0].content == 'loop' %}" + loop + "{% endif %}{{ messages[0].content }}"
    text = Text.load(tiny_folder, chat_template=template, patience=0.2)
    for _ in range(2):
        with pytest.raises(TextError, match=r"took longer than 0\.2 s"):
            text.encode_chat([turn("user", "loop")])
        assert text.decode(text.encode_chat([turn("user", "hi")])) == "hi"


# Options of /tokenize, and variables of a template

HI = [turn("user", "Hi")]


def test_control_tokens_are_left_out_or_written_out(tiny_text: Text) -> None:
    ids = [tiny.START_ID, *tiny_text.encode("Hi"), tiny.END_ID]
    assert tiny_text.decode(ids) == "Hi"
    assert tiny_text.decode(ids, skip_special_tokens=False) == f"{tiny.START}Hi{tiny.END}"


def test_a_token_is_spelled_as_the_vocabulary_has_it(tiny_text: Text) -> None:
    assert "".join(tiny_text.token_string(token_id) for token_id in tiny_text.encode("a b")) == "aĠb"
    assert tiny_text.token_string(tiny.END_ID) == tiny.END
    assert tiny_text.token_string(10**6) == ""


def test_a_conversation_may_end_before_the_assistant_speaks(tiny_text: Text) -> None:
    ended = tiny_text.encode_chat(HI, add_generation_prompt=False)
    begun = tiny_text.encode_chat(HI)
    assert begun[: len(ended)] == ended
    assert tiny_text.decode(begun[len(ended) :], skip_special_tokens=False) == f"{tiny.START}assistant\n"


def test_the_assistants_last_turn_may_stay_open(tiny_text: Text) -> None:
    turns = [*HI, turn("assistant", f"It is {tiny.END}")]
    ids = tiny_text.encode_chat(turns, add_generation_prompt=False, continue_final_message=True)
    begun = tiny_text.encode_chat(HI)
    assert ids[: len(begun)] == begun and not {tiny.START_ID, tiny.END_ID} & set(ids[len(begun) :])
    assert tiny_text.decode(ids[len(begun) :]) == f"It is {tiny.END}"


def test_variables_reach_the_template(tiny_folder: Path) -> None:
    text = Text.load(tiny_folder, chat_template="{{ mood | default('calm') }}: {{ messages[0]['content'] }}")
    assert text.decode(text.encode_chat(HI)) == "calm: Hi"
    assert text.decode(text.encode_chat(HI, variables={"mood": "gay"})) == "gay: Hi"


@pytest.mark.parametrize("name", ["tokenize", "chat_template", "conversation", "add_generation_prompt", "padding"])
def test_variables_may_not_take_the_place_of_what_has_its_own_meaning(tiny_text: Text, name: str) -> None:
    with pytest.raises(TextError, match=name):
        tiny_text.encode_chat(HI, variables={name: True})


def test_control_texts_in_variables_are_plain_text(tiny_folder: Path) -> None:
    text = Text.load(tiny_folder, chat_template="{{ mood }}{{ messages[0]['content'] }}")
    assert tiny.END_ID not in text.encode_chat(HI, variables={"mood": tiny.END})


# End tokens that only the tokenizer or its chat template knows, and texts with tokens that the network lacks

TURN = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + BEHIND }}{% endfor %}"
HARMONY = TURN.replace("BEHIND", "('<|endoftext|>' if loop.last else '<|im_end|>')")
"""Messages of one answer end otherwise than the answer."""


def name_end(folder: Path, token: str) -> Path:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"eos_token": token}), "utf-8")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.build(tmp_path)


ENDS = [
    (tiny.END, "''", {tiny.END_ID, tiny.START_ID}),
    (tiny.END, "'\n'", {tiny.END_ID, tiny.START_ID}),
    (tiny.PAD, "'<|im_end|>\n'", {tiny.PAD_ID, tiny.END_ID}),
    (tiny.PAD, "' the end <|im_end|><|im_start|>'", {tiny.PAD_ID, tiny.END_ID}),
    (tiny.END, HARMONY, {tiny.END_ID, tiny.PAD_ID}),
    (tiny.PAD, "raise_exception('no')", {tiny.PAD_ID}),
    ("the", "'<|im_end|>'", {tiny.END_ID}),
    ("\n", "'<|im_end|>'", {tiny.END_ID}),
    (".", "'<|im_end|>'", {tiny.END_ID}),
]


@pytest.mark.parametrize(("named", "behind", "expected"), ENDS)
def test_ends_are_the_tokenizers_and_those_of_turns(folder: Path, named: str, behind: str, expected: set[int]) -> None:
    template = behind if "{%" in behind else TURN.replace("BEHIND", behind)
    assert Text.load(name_end(folder, named), chat_template=template).end_token_ids == expected


def test_a_template_that_says_nothing_of_the_answer_tells_no_end(folder: Path) -> None:
    text = Text.load(name_end(folder, tiny.PAD), chat_template="<|im_end|>{{ messages[0].content }}<|im_end|>")
    assert text.end_token_ids == {tiny.PAD_ID}


@pytest.mark.parametrize("way", ["prompt", "chat", "template"])
def test_a_text_with_a_token_that_the_network_lacks_is_refused_by_name(folder: Path, way: str) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text("utf-8"))
    plain = {key: False for key in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    content["added_tokens"].append({"id": len(content["model"]["vocab"]), "content": "<think>"} | plain)
    path.write_text(json.dumps(content), "utf-8")
    text = Text.load(folder, chat_template="<think>{{ messages[0].content }}" if way == "template" else None)
    size = text.vocab_size - 1
    text.limit_ids(size)
    with pytest.raises(TextError, match=rf"token '<think>' \({size}\) is not in the network, whose ids end at"):
        if way == "prompt":
            text.encode("a <think> b")
        else:
            text.encode_chat([{"role": "user", "content": "a" if way == "template" else "a <think>"}])
    assert text.encode("a think b")


def test_ids_are_counted_up_to_the_largest(folder: Path) -> None:
    """A vocabulary with a gap has fewer tokens than ids."""
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    content["model"]["vocab"]["zz"] = 400
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    assert Text.load(folder).vocab_size == 401
