"""End tokens that only the tokenizer or its chat template knows, and texts with tokens that the network lacks."""

import json
from pathlib import Path

import pytest

from models.errors import TextError
from models.text import Text
from tests import tiny

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
