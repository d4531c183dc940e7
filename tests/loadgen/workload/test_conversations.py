"""Requests of a workload, joined to conversations, are sent one after another's answer."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import orjson
import pytest

from loadgen.client.request import Failure, Outcome, PreparedRequest, Prompt, RequestForm
from loadgen.load.load import Clock, Run, play
from loadgen.load.schedule import schedule
from loadgen.workload.requests import join_turns
from models.errors import UserError
from tests.loadgen.load.test_load import Counting

PROMPTS = [Prompt(messages=({"role": "user", "content": f"question {place}"},), max_tokens=5) for place in range(7)]


def converse(turns: int, fails: int | None = None) -> tuple[Run, list[list[str]]]:
    """Play the prompts; returns also what each request said, by its index. The request of index `fails` fails."""
    heard: dict[int, list[str]] = {}

    async def send(request: PreparedRequest, due: float, clock: Clock) -> Outcome:
        heard[request.index] = [message["content"] for message in orjson.loads(request.body)["messages"]]
        done = Outcome(request.index, "completed", due, clock(), (clock(),), clock(), 1, text=f"answer {request.index}")
        failure = Failure("http", "no")
        return replace(done, status="failed", failure=failure) if request.index == fails else done

    plan = schedule(join_turns(PROMPTS, turns), RequestForm("m"))
    assert plan.count == len(PROMPTS)
    run = asyncio.run(play(plan.requests, plan.times, send, Counting(), think_time=0.01))
    return run, [heard[index] for index in sorted(heard)]


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
    assert [outcome.index for outcome in run.outcomes] == list(range(7)) and not run.interrupted
    turns = run.outcomes[:3]
    assert all(later.sent >= earlier.end + 0.01 for earlier, later in zip(turns, turns[1:], strict=False))


def test_a_conversation_ends_with_an_answer_that_does_not_come() -> None:
    run, heard = converse(3, fails=1)
    assert [outcome.index for outcome in run.outcomes] == [0, 1, 3, 4, 5, 6] and len(heard) == 6
    assert not run.interrupted


def test_single_turns_are_the_workload_itself() -> None:
    assert join_turns(PROMPTS, 1) == PROMPTS
    assert join_turns([Prompt(text="raw")], 1) == [Prompt(text="raw")]
    with pytest.raises(UserError, match="not chat messages"):
        join_turns([Prompt(text="raw")], 2)
