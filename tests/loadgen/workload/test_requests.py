"""The requests of a workload: random tokens, traces, mixes, conversations, and flags that are refused."""

import argparse
import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import orjson
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from loadgen.client.request import Clock, LoadPrompt, PreparedRequest, RequestFailure, RequestForm, RequestOutcome
from loadgen.load import Run, play, schedule
from loadgen.options import Arriving
from loadgen.workload.requests import ignores_eos, join_turns
from models.errors import UserError
from tests.loadgen.load.test_load import show_nothing
from tests.loadgen.workload.args import parse, prompts, write

PROMPTS = [LoadPrompt(messages=({"role": "user", "content": f"question {place}"},), max_tokens=5) for place in range(7)]


def converse(turns: int, fails: int | None = None) -> tuple[Run, list[list[str]]]:
    """Play the prompts; returns also what each request said, by its index. The request of index `fails` fails."""
    heard: dict[int, list[str]] = {}

    async def send(request: PreparedRequest, clock: Clock) -> RequestOutcome:
        heard[request.index] = [message["content"] for message in orjson.loads(request.body)["messages"]]
        done = RequestOutcome(request, "completed", clock(), (clock(),), clock(), 1, text=f"answer {request.index}")
        failure = RequestFailure("http", "no")
        return replace(done, status="failed", failure=failure) if request.index == fails else done

    plan = schedule(join_turns(PROMPTS, turns), RequestForm("m"), Arriving())
    return asyncio.run(play(plan, send, show_nothing, think_time=0.01)), [heard[index] for index in sorted(heard)]


def test_each_turn_carries_all_that_was_said_before_it() -> None:
    run, heard = converse(3)
    assert heard == [
        ["question 0"],
        ["question 0", "answer 0", "question 1"],
        ["question 0", "answer 0", "question 1", "answer 1", "question 2"],
        ["question 3"],
        ["question 3", "answer 3", "question 4"],
        ["question 3", "answer 3", "question 4", "answer 4", "question 5"],
        ["question 6"],
    ]
    assert [outcome.request.index for outcome in run.outcomes] == list(range(7)) and not run.interrupted
    turns = run.outcomes[:3]
    assert all(later.sent >= earlier.end + 0.01 for earlier, later in zip(turns, turns[1:], strict=False))


def test_a_conversation_ends_with_an_answer_that_does_not_come() -> None:
    run, heard = converse(3, fails=1)
    assert [outcome.request.index for outcome in run.outcomes] == [0, 1, 3, 4, 5, 6] and len(heard) == 6
    assert not run.interrupted


def test_single_turns_are_the_workload_itself() -> None:
    assert join_turns(PROMPTS, 1) == PROMPTS
    assert join_turns([LoadPrompt(tokens=(1,))], 1) == [LoadPrompt(tokens=(1,))]
    with pytest.raises(UserError, match="not chat messages"):
        join_turns([LoadPrompt(tokens=(1,))], 2)


BURSTGPT = "Timestamp,Request tokens,Response tokens\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Ten requests, one every 2 seconds, of 100 to 1000 prompt and 10 to 100 answer tokens."""
    return write(tmp_path, "t.csv", BURSTGPT + "".join(f"{2 * n},{100 * n},{10 * n}\n" for n in range(1, 11)))


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A folder with a tokenizer of ten words, one of them special, and lengths cut at 3 tokens."""
    words = ["[U]", *"bcdefghij"]
    made = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, "[U]"))
    made.pre_tokenizer = Whitespace()
    made.add_special_tokens(["[U]", "<end>"])
    made.enable_truncation(3)
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


# Random tokens


def test_random_lengths_are_uniform_around_their_means() -> None:
    flags = ("--dataset-name", "random", "--random-input-len", 100, "--random-output-len", 10)
    found = prompts(*flags, "--random-range-ratio", 0.5, num_prompts=2000)
    inputs = [len(one.tokens) for one in found]
    assert (min(inputs), max(inputs), {one.max_tokens for one in found}) == (50, 150, set(range(5, 16)))
    assert sum(inputs) / 2000 == pytest.approx(100, rel=0.03)


def test_random_lengths_without_a_range_are_exact_and_imposed_by_max_tokens() -> None:
    flags = ("--dataset-name", "random", "--random-input-len", 7, "--random-output-len", 3)
    for prompt in prompts(*flags):
        assert (len(prompt.tokens), prompt.max_tokens, prompt.replay_tokens) == (7, 3, None)
        assert (prompt.messages, prompt.arrival, prompt.label) == ((), 0.0, "random")
    assert {(one.max_tokens, one.replay_tokens) for one in prompts(*flags, "--replay-lengths")} == {(3, 3)}


def test_random_prompts_are_made_of_ordinary_ids_and_share_no_beginning() -> None:
    found = prompts("--dataset-name", "random", "--random-vocab-size", 1000, num_prompts=200)
    assert {token for one in found for token in one.tokens} == set(range(10, 1000))
    assert len({one.tokens for one in found}) > 170
    assert all(one.tokens[0] != other.tokens[0] or one.tokens == other.tokens for one, other in pairwise(found))
    assert {len(one.tokens) for one in found} == {1024}


def test_random_prompts_know_the_tokenizers_ids_and_leave_special_ones_out(tokenizer: Path) -> None:
    flags = ("--dataset-name", "random", "--random-input-len", 100, "--tokenizer", tokenizer)
    assert {token for one in prompts(*flags) for token in one.tokens} == set(range(1, 10))
    assert {token for one in prompts(*flags, "--random-vocab-size", 4) for token in one.tokens} == {1, 2, 3}


# Tokens of texts


def test_a_tokenizer_counts_texts_exactly_whatever_it_truncates(tmp_path: Path, tokenizer: Path) -> None:
    file = write(tmp_path, "one.jsonl", json.dumps({"input": "b", "reference": "b c d e f g"}))
    flags = ("--dataset-name", "jsonl", "--dataset-path", file, "--replay-lengths", "--tokenizer", tokenizer)
    assert {one.replay_tokens for one in prompts(*flags)} == {6 + 1}


def test_a_folder_without_a_usable_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--tokenizer: .*absent.tokenizer\.json cannot be read"):
        prompts("--tokenizer", tmp_path / "absent")
    write(tmp_path, "tokenizer.json", "{}")
    with pytest.raises(UserError, match=r"--tokenizer: .*is not a tokenizer"):
        prompts("--tokenizer", tmp_path)


def test_a_vocabulary_of_special_tokens_alone_is_refused(tokenizer: Path) -> None:
    with pytest.raises(UserError, match="--random-vocab-size 1: .*no ordinary token"):
        prompts("--dataset-name", "random", "--tokenizer", tokenizer, "--random-vocab-size", 1)


# Traces


def test_a_trace_brings_arrivals_and_lengths_that_are_replayed(trace: Path) -> None:
    found = prompts("--dataset-name", "burstgpt", "--dataset-path", trace)
    assert [one.arrival for one in found] == [2.0 * n for n in range(10)]
    assert [len(one.tokens) for one in found] == [100 * n for n in range(1, 11)]
    assert [one.replay_tokens for one in found] == [10 * n for n in range(1, 11)]
    assert {(one.max_tokens, one.label) for one in found} == {(100, "burstgpt")}


def test_a_trace_is_cut_as_the_flags_say(trace: Path) -> None:
    flags = ("--dataset-name", "burstgpt", "--dataset-path", trace, "--trace-start", 3, "--trace-duration", 9)
    found = prompts(*flags, "--trace-speed", 2, "--max-input-len", 450, "--max-output-len", 35)
    assert [one.arrival for one in found] == [0.5, 1.5, 2.5, 3.5]
    assert [len(one.tokens) for one in found] == [300, 400, 450, 450]
    assert [(one.replay_tokens, one.max_tokens) for one in found] == [(30, 35), (35, 35), (35, 35), (35, 35)]
    assert len(prompts(*flags, num_prompts=2)) == 2


def test_lengths_of_a_trace_may_be_imposed_on_servers_that_do_not_replay(trace: Path) -> None:
    found = prompts("--dataset-name", "burstgpt", "--dataset-path", trace, "--no-replay-lengths")
    assert [(one.max_tokens, one.replay_tokens) for one in found] == [(10 * n, None) for n in range(1, 11)]


# Whether the end token is to be ignored


IMPOSED = [
    ((), False),
    (("--dataset-name", "random"), True),
    (("--dataset-name", "random", "--replay-lengths"), False),
    (("--dataset-name", "azure", "--dataset-path", "x"), False),
    (("--dataset-name", "azure", "--dataset-path", "x", "--no-replay-lengths"), True),
]


@pytest.mark.parametrize(("flags", "expected"), IMPOSED)
def test_only_imposed_lengths_need_the_end_token_ignored(flags: tuple[str, ...], expected: bool) -> None:
    assert ignores_eos(parse(*flags)) is expected


# Wrong flags


CLASHES = [
    (("--dataset-name", "azure"), "the dataset azure needs a file: give --dataset-path FILE"),
    (("--dataset-path", "x"), "the dataset builtin does not read x: say which"),
]


@pytest.mark.parametrize(("flags", "said"), CLASHES)
def test_flags_that_do_not_go_together_are_refused(flags: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError, match=said):
        prompts(*flags)


WRONG_FLAGS = [
    *("--dataset-name luck", "--max-input-len 0", "--max-output-len 1.5", "--random-input-len x"),
    *("--random-range-ratio 1", "--random-range-ratio -0.1", "--trace-speed 0", "--trace-start -1"),
    "--trace-duration nan",
]


@pytest.mark.parametrize("flags", [*map(str.split, WRONG_FLAGS)])
def test_a_flag_with_a_wrong_value_is_refused(flags: list[str]) -> None:
    with pytest.raises(argparse.ArgumentError, match=flags[0]):
        parse(*flags)
