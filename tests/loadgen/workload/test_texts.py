"""Workloads of text from files: jsonl and sharegpt."""

import json
from functools import partial
from pathlib import Path

import pytest

from loadgen.client.request import LoadPrompt
from models.errors import UserError
from tests.loadgen.workload.args import prompts, write

DATA = Path(__file__).parents[4] / "shared" / "data"


def lines(folder: Path, *rows: object) -> Path:
    return write(folder, "made.jsonl", "\n".join(json.dumps(row) for row in rows))


# jsonl


def read(kind: str, file: Path, *flags: object, **given: int) -> list[LoadPrompt]:
    return prompts("--dataset-name", kind, "--dataset-path", file, *flags, **given)


jsonl, sharegpt = partial(read, "jsonl"), partial(read, "sharegpt")


LINES = [
    ({"instruction": "Do.", "input": "It."}, [("system", "Do."), ("user", "It.")]),
    ({"instruction": "Do.", "input": ""}, [("user", "Do.")]),
    ({"input": "It.", "other": 1}, [("user", "It.")]),
    ({"instruction": "", "input": "A", "turns": ["A", "B"]}, [("user", "A\n\nB")]),
    ({"instruction": None, "turns": ["A"], "reference": None}, [("user", "A")]),
]


@pytest.mark.parametrize(("row", "messages"), LINES)
def test_a_line_becomes_messages(tmp_path: Path, row: object, messages: list[tuple[str, str]]) -> None:
    (prompt,) = jsonl(lines(tmp_path, row), num_prompts=1)
    assert [(message["role"], message["content"]) for message in prompt.messages] == messages
    assert (prompt.tokens, prompt.arrival, prompt.label) == ((), 0.0, "made")


def test_lines_come_in_an_order_of_the_seed_and_are_used_equally_often(tmp_path: Path) -> None:
    file = lines(tmp_path, *({"input": str(number)} for number in range(10)))
    found = [prompt.messages[0]["content"] for prompt in jsonl(file, num_prompts=25)]
    assert set(found[:10]) == set(found[10:20]) == {str(number) for number in range(10)}
    assert found[:10] != found[10:20]
    assert found == [prompt.messages[0]["content"] for prompt in jsonl(file, num_prompts=25)]
    assert found != [prompt.messages[0]["content"] for prompt in jsonl(file, num_prompts=25, seed=1)]


def test_replayed_lengths_are_the_references_and_max_tokens_tells_none_of_them(tmp_path: Path) -> None:
    file = lines(tmp_path, {"input": "a", "reference": "x" * 40}, {"input": "b", "reference": "дом 世界"})
    found = {prompt.messages[0]["content"]: prompt for prompt in jsonl(file, "--replay-lengths", num_prompts=2)}
    assert {text: prompt.replay_tokens for text, prompt in found.items()} == {"a": 40 // 4 + 1, "b": 5 + 1 + 1}
    assert {prompt.max_tokens for prompt in found.values()} == {11}
    assert [(prompt.replay_tokens, prompt.max_tokens) for prompt in jsonl(file, num_prompts=2)] == [(None, 11)] * 2


def test_without_references_the_server_bounds_the_answers(tmp_path: Path) -> None:
    (prompt,) = jsonl(lines(tmp_path, {"input": "a"}), num_prompts=1)
    assert (prompt.replay_tokens, prompt.max_tokens) == (None, None)


def test_answers_are_clipped_and_long_texts_left_out(tmp_path: Path) -> None:
    file = lines(tmp_path, {"input": "a" * 80, "reference": "x" * 400}, {"input": "b" * 81, "reference": "x"})
    found = jsonl(file, "--max-input-len", 20, "--max-output-len", 50, "--replay-lengths", num_prompts=3)
    assert {prompt.messages[0]["content"] for prompt in found} == {"a" * 80}
    assert {(prompt.replay_tokens, prompt.max_tokens) for prompt in found} == {(50, 50)}
    with pytest.raises(UserError, match=r"made\.jsonl: no request is within the bounds; raise --max-input-len"):
        jsonl(file, "--max-input-len", 5)


def test_replay_needs_a_reference_on_every_line(tmp_path: Path) -> None:
    file = lines(tmp_path, {"input": "a", "reference": "b"}, {"input": "c"})
    with pytest.raises(UserError, match="line 2: has no reference.*--replay-lengths"):
        jsonl(file, "--replay-lengths")


@pytest.mark.skipif(not DATA.exists(), reason="needs the real workloads in ../shared/data")
@pytest.mark.parametrize("name", ["tasks/bf", "tasks/mt_en_zh", "chat/alpaca", "chat/mt_bench"])
def test_real_files_are_read(name: str) -> None:
    file = DATA / f"{name}.jsonl"
    found = jsonl(file, num_prompts=2000)
    assert len(found) == 2000
    assert {prompt.label for prompt in found} == {file.stem}


# sharegpt


def exchange(question: str, answer: str, *more: str) -> dict[str, object]:
    turns = [("human", question), ("gpt", answer), *(("human", text) for text in more)]
    return {"id": "x", "conversations": [{"from": who, "value": text} for who, text in turns]}


def shared(folder: Path, *entries: object) -> Path:
    return write(folder, "share.json", json.dumps(entries, indent=1))


def test_the_first_question_is_asked_and_its_answer_is_the_length(tmp_path: Path) -> None:
    (prompt,) = sharegpt(shared(tmp_path, exchange("q" * 40, "a" * 80, "q" * 10)), num_prompts=1)
    assert prompt.messages == ({"role": "user", "content": "q" * 40},)
    assert (prompt.max_tokens, prompt.replay_tokens, prompt.label) == (21, None, "sharegpt")


def test_lengths_may_be_replayed_or_all_the_same(tmp_path: Path) -> None:
    file = shared(tmp_path, exchange("q" * 40, "a" * 80), exchange("p" * 40, "a" * 120))
    replayed = sharegpt(file, "--replay-lengths", num_prompts=2)
    assert sorted(prompt.replay_tokens or 0 for prompt in replayed) == [21, 31]
    assert {prompt.max_tokens for prompt in replayed} == {31}
    assert {prompt.max_tokens for prompt in sharegpt(file, "--sharegpt-output-len", 9)} == {9}


def test_exchanges_that_are_very_short_or_long_or_no_exchanges_are_left_out(tmp_path: Path) -> None:
    bad = [
        exchange("hi", "a" * 80),
        exchange("q" * 40, "a"),
        exchange("q" * 4097, "a" * 80),
        exchange("q" * 4000, "a" * 4200),
        {"conversations": []},
        {"conversations": [{"from": "gpt", "value": "a" * 80}]},
        exchange("   ", "a" * 80),
    ]
    late = {"conversations": [{"from": "gpt", "value": "g" * 80}, *list(exchange("y" * 40, "a" * 80)["conversations"])]}  # type: ignore[call-overload]
    found = sharegpt(shared(tmp_path, *bad, exchange("x" * 40, "a" * 80), late))
    assert {prompt.messages[0]["content"][0] for prompt in found} == {"x", "y"}
    assert len(sharegpt(shared(tmp_path, bad[2]), "--max-input-len", 1025, num_prompts=1)) == 1
    with pytest.raises(UserError, match="no request is within the bounds"):
        sharegpt(shared(tmp_path, bad[0]))


HUMAN, GPT = {"from": "human", "value": "q" * 40}, {"from": "gpt", "value": "a" * 40}
USER, ASSISTANT = {"role": "user", "content": "q" * 40}, {"role": "assistant", "content": "a" * 40}


ODD = [
    ({"conversations": [USER, ASSISTANT]}, True),
    ({"messages": [{"role": "system", "content": "s"}, USER, ASSISTANT]}, True),
    ({"conversations": [HUMAN, GPT, {"from": "human", "value": None}]}, True),
    ({"conversations": [HUMAN, {"from": "gpt", "value": None}]}, False),
    ({"conversations": [HUMAN, {"from": "gpt"}]}, False),
    ({"conversations": [HUMAN, {"from": "gpt", "value": 5}]}, False),
    ({"conversations": [HUMAN]}, False),
    ({"conversations": None}, False),
    ({"conversations": "none"}, False),
    ({"id": "b"}, False),
    (None, False),
    ([1], False),
]


@pytest.mark.parametrize(("entry", "is_read"), ODD, ids=str)
def test_odd_entries_are_told(tmp_path: Path, entry: object, is_read: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """One of these ended the command for all others."""
    file = shared(tmp_path, exchange("x" * 40, "a" * 80), entry)
    found = sharegpt(file, num_prompts=2)
    assert {prompt.messages[0]["content"][0] for prompt in found} == ({"x", "q"} if is_read else {"x"})
    told = f"{file}: 1 of 2 rows are left out: they have no question with an answer\n"
    assert capsys.readouterr().err == ("" if is_read else told)


GOOD = '[\n{"conversations": []},\n'
WRONG = {
    "cut off": ("jsonl", '{"input": "a"}\n{"input": "b', ", line 2", "data was truncated"),
    "no text": ("jsonl", '{"input": "a"}\n\n{"reference": "b"}', ", line 3", "has no text"),
    "a number for text": ("jsonl", '{"input": 1}', ", line 1", "got `int` - at `$.input`"),
    "turns that are text": ("jsonl", '{"turns": "a"}', ", line 1", "got `str` - at `$.turns`"),
    "an empty turn": ("jsonl", '{"turns": ["a", ""]}', ", line 1", "of length >= 1 - at `$.turns[1]`"),
    "a list": ("jsonl", '["a"]', ", line 1", "Expected `object`, got `array`"),
    "lines of lists without end": ("jsonl", "[" * 100_000, ", line 1", "is not the JSON that is wanted"),
    "an empty line": ("jsonl", "\n", "", "holds no requests"),
    "cut off inside an entry": ("sharegpt", GOOD + '{"conversations": [{"fro', "", "data was truncated"),
    "nothing": ("sharegpt", "", "", "data was truncated"),
    "more after the list": ("sharegpt", "[]\n\n[]", "", "trailing characters"),
    "no list": ("sharegpt", '{"conversations": []}', "", "is not one JSON list"),
    "no conversation at all": ("sharegpt", GOOD + "{}]", "", "no conversation with a question and an answer"),
    "lists without end": ("sharegpt", "[" * 100_000, "", "is not one JSON list"),
}


@pytest.mark.parametrize(("kind", "text", "where", "reason"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_refused_with_its_place(tmp_path: Path, kind: str, text: str, where: str, reason: str) -> None:
    file = write(tmp_path, "wrong", text)
    with pytest.raises(UserError) as caught:
        read(kind, file)
    assert str(caught.value).startswith(f"{file}{where}: ") and reason in str(caught.value)
