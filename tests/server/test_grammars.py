"""Grammars and the process that tries them: how long, what is remembered and told, and what becomes of it."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, cast

import pytest

from engine.sampling.grammar import Grammars
from engine.sampling.params import Grammar, GrammarKind
from models.text import Text
from server import grammars
from tests.engine.sampling.bombs import BOMBS, REAL
from tests.engine.sampling.grammars import END_TOKEN, PERSON, schema
from tests.server.fakes import END, FakeText

ORDINARY, LARGE = Grammar(GrammarKind.REGEX, "a"), Grammar(GrammarKind.REGEX, "b")


@dataclass
class Played:
    """Plays what comes of a trial; LARGE takes longer than the first may."""

    last: Callable[[], grammars.Outcome] = grammars.Outcome
    """The outcome of the second trial."""
    tried: list[tuple[Grammar | None, float]] = field(default_factory=list)

    def run(self, trial: grammars.Trial) -> grammars.Outcome:
        self.tried.append((trial.compiled, trial.seconds))
        if trial.compiled is not LARGE:
            return grammars.Outcome()
        if trial.seconds == grammars.QUICK:
            raise grammars.Exceeded
        return self.last()

    def close(self) -> None:
        pass


def compiler_of(tester: Played) -> grammars.GrammarCompiler:
    return grammars.GrammarCompiler(Grammars(FakeText().to_json, FakeText.VOCAB, {END}), cast(Any, tester))


async def test_each_outcome_is_remembered_that_of_bombs_too() -> None:
    def exceed() -> grammars.Outcome:
        raise grammars.Exceeded

    tester = Played(exceed)
    with closing(compiler_of(tester)) as compiler:
        for _ in range(3):
            await compiler.compile(ORDINARY)
            with pytest.raises(
                grammars.RefusedGrammar, match="^takes more than 1 s or 64 MiB to be compiled; make it smaller"
            ):
                await compiler.compile(LARGE)
    assert tester.tried == [(ORDINARY, grammars.QUICK), (LARGE, grammars.QUICK), (LARGE, grammars.PATIENT)]


async def test_grammars_get_a_share_where_others_leave_too_little_of_the_processors() -> None:
    class Busy(Played):
        def run(self, trial: grammars.Trial) -> grammars.Outcome:
            spares.append(trial.spare)
            if trial.spare is not None:
                raise grammars.Starved
            return super().run(trial)

    spares, tester = list[float | None](), Busy()
    with closing(compiler_of(tester)) as compiler:
        for _ in range(2):
            assert await compiler.compile(LARGE) is not None
    assert spares == [grammars.SPARE * grammars.QUICK, None, grammars.SPARE * grammars.PATIENT, None], (
        "what came of it is remembered"
    )
    assert tester.tried == [(LARGE, grammars.QUICK), (LARGE, grammars.PATIENT)]


async def test_ordinary_grammars_do_not_wait_for_large_ones() -> None:
    """One thread encoded all text and compiled all grammars: one that took 3 s held up every other request."""
    go, begun = threading.Event(), threading.Event()

    def wait() -> grammars.Outcome:
        begun.set()
        assert go.wait(60)
        return grammars.Outcome()

    with closing(compiler_of(Played(wait))) as compiler:
        large = [asyncio.create_task(compiler.compile(LARGE)) for _ in range(10)]
        await asyncio.to_thread(begun.wait)
        assert await compiler.compile(ORDINARY) is not None
        assert not any(one.done() for one in large)
        go.set()
        assert all(await asyncio.gather(*large))


QUICK_BOMBS = (
    *("1,300 links by items", "a chain by anchors", "a chain of rules", "a chain of terminals", "many brackets"),
    *("a schema that is twice itself", "alternatives multiplied", "brackets in a pattern"),
)


@pytest.fixture(scope="module")
def process(tiny_text: Text) -> Iterator[grammars.TrialProcess]:
    with closing(process_of(tiny_text)) as process:
        yield process


def process_of(text: Text, timeout: float = 60) -> grammars.TrialProcess:
    return grammars.TrialProcess(grammars.run_trials, text.to_json(), text.vocab_size, (END_TOKEN,), timeout=timeout)


def number_of(process: grammars.TrialProcess) -> int:
    assert process._running is not None and process._running.process.pid is not None
    return process._running.process.pid


def tried(process: grammars.TrialProcess, grammar: Grammar) -> grammars.Outcome:
    return process.run(grammars.Trial(grammar, grammars.PATIENT))


def refusal(process: grammars.TrialProcess, grammar: Grammar) -> str | None:
    """The complaint about a grammar; None where it is taken."""
    try:
        outcome = tried(process, grammar)
    except grammars.Exceeded:
        return "exceeded"
    assert outcome.error is not None or outcome.bytes <= grammars.MEMORY
    return outcome.error


def test_a_trial_tells_what_it_took_or_what_is_wrong(process: grammars.TrialProcess) -> None:
    assert tried(process, PERSON).error is None
    assert tried(process, schema({"multipleOf": 9973})).bytes > 2**20
    assert "unclosed" in (tried(process, Grammar(GrammarKind.REGEX, "a(")).error or "")
    assert "strange" in (tried(process, schema({"type": "strange"})).error or "")


def test_a_process_that_has_ended_keeps_no_descriptor(process: grammars.TrialProcess, tiny_text: Text) -> None:
    tried(process, PERSON)
    before = len(os.listdir("/proc/self/fd"))
    with closing(process_of(tiny_text)) as another:
        tried(another, PERSON)
        kept = another._running  # as the traceback of a call that failed keeps it
    assert kept is not None
    assert len(os.listdir("/proc/self/fd")) == before


def assert_lives_through(process: grammars.TrialProcess, bombs: tuple[str, ...]) -> None:
    tried(process, PERSON)
    number = number_of(process)
    for name in bombs:
        said = refusal(process, BOMBS[name])
        assert said is None or (said.isprintable() and len(said) <= 400), name
        assert said is None or not any(word in said for word in ("panic", ".rs", "/root/", "backtrace")), said
    assert number_of(process) == number, "it never died itself"
    assert tried(process, PERSON).error is None


def test_a_trial_may_die_and_the_process_lives(process: grammars.TrialProcess) -> None:
    assert_lives_through(process, QUICK_BOMBS)
    assert refusal(process, BOMBS["1,300 links by items"]) == "exceeded"


@pytest.mark.skipif("LENGTHWISE_TEST_FAULTS" not in os.environ, reason="a server does in test_grammar_bombs.py")
@pytest.mark.timeout(400)
def test_the_process_lives_through_every_bomb(process: grammars.TrialProcess) -> None:
    assert len(BOMBS) >= 60
    assert_lives_through(process, tuple(BOMBS))


def test_a_trial_in_spare_time_ends_when_it_had_too_little(process: grammars.TrialProcess) -> None:
    assert process.run(grammars.Trial(PERSON, grammars.PATIENT, spare=60)).error is None
    with pytest.raises(grammars.Starved):
        process.run(grammars.Trial(BOMBS["a large multiple"], 60, spare=0.05))


def run_trials_in_a_sandbox(connection: Connection[Any, Any], *arguments: Any) -> None:
    """Run trials where the system has the ordinary policies of scheduling alone."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "no such policy")

    os.sched_setscheduler = refuse
    grammars.run_trials(connection, *arguments)


def test_trials_run_where_the_system_has_no_idle_policy(tiny_text: Text) -> None:
    """Each trial in spare time died at once, and what takes longer than the first was refused as too large."""
    arguments = (tiny_text.to_json(), tiny_text.vocab_size, (END_TOKEN,))
    with closing(grammars.TrialProcess(run_trials_in_a_sandbox, *arguments, timeout=60)) as process:
        assert process.run(grammars.Trial(PERSON, grammars.PATIENT, spare=60)).error is None


def test_what_real_programs_send_passes_the_first_trial(process: grammars.TrialProcess) -> None:
    for name, grammar in REAL.items():
        outcome = process.run(grammars.Trial(grammar, grammars.PATIENT))
        assert outcome.error is None, name


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_ends_or_stands_still_is_replaced(tiny_text: Text, number: int) -> None:
    trial = grammars.Trial(PERSON, grammars.QUICK)  # which is not nice: other tests may keep all cores busy
    with closing(process_of(tiny_text, timeout=3)) as process:
        process.run(trial)
        first = number_of(process)
        os.kill(first, number)
        assert process.run(trial).error is None
        assert number_of(process) != first
        with pytest.raises(ProcessLookupError):  # it is not left behind
            os.kill(first, 0)


def test_where_no_process_can_be_had_callers_are_told() -> None:
    """The work of this one is no more than to tell an object's number."""
    with closing(grammars.TrialProcess(id)) as process, pytest.raises(grammars.TrialsFailed, match="try again later"):
        tried(process, PERSON)


def test_the_end_does_not_wait_for_a_trial(tiny_text: Text) -> None:
    process = process_of(tiny_text, timeout=600)
    tried(process, PERSON)
    number = number_of(process)
    os.kill(number, signal.SIGSTOP)
    process.close()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)
    with pytest.raises(grammars.TrialsFailed, match="shutting down"):
        tried(process, PERSON)
