"""Which grammars are tried how long, what is remembered of it, and what a client is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from engine.sampling.grammar import Grammars
from engine.sampling.params import Grammar, GrammarKind
from server.grammars import PATIENT, QUICK, SPARE, Exceeded, GrammarCompiler, Outcome, RefusedGrammar, Starved, Trial
from tests.server.fakes import END, FakeText

ORDINARY, LARGE = Grammar(GrammarKind.REGEX, "a"), Grammar(GrammarKind.REGEX, "b")


@dataclass
class Played:
    """Plays what comes of a trial; LARGE takes longer than the first may."""

    last: Callable[[], Outcome] = Outcome
    """The outcome of the second trial."""
    tried: list[tuple[Grammar | None, float]] = field(default_factory=list)

    def run(self, trial: Trial) -> Outcome:
        self.tried.append((trial.compiled, trial.seconds))
        if trial.compiled is not LARGE:
            return Outcome()
        if trial.seconds == QUICK:
            raise Exceeded
        return self.last()

    def close(self) -> None:
        pass


def compiler_of(tester: Played) -> GrammarCompiler:
    return GrammarCompiler(Grammars(FakeText().to_json, FakeText.VOCAB, {END}), cast(Any, tester))


async def test_each_outcome_is_remembered_that_of_bombs_too() -> None:
    def exceed() -> Outcome:
        raise Exceeded

    tester = Played(exceed)
    with closing(compiler_of(tester)) as compiler:
        for _ in range(3):
            await compiler.compile(ORDINARY)
            with pytest.raises(RefusedGrammar, match="^takes more than 1 s or 64 MiB to be compiled; make it smaller"):
                await compiler.compile(LARGE)
    assert tester.tried == [(ORDINARY, QUICK), (LARGE, QUICK), (LARGE, PATIENT)]


async def test_grammars_get_a_share_where_others_leave_too_little_of_the_processors() -> None:
    class Busy(Played):
        def run(self, trial: Trial) -> Outcome:
            spares.append(trial.spare)
            if trial.spare is not None:
                raise Starved
            return super().run(trial)

    spares, tester = list[float | None](), Busy()
    with closing(compiler_of(tester)) as compiler:
        for _ in range(2):
            assert await compiler.compile(LARGE) is not None
    assert spares == [SPARE * QUICK, None, SPARE * PATIENT, None], "what came of it is remembered"
    assert tester.tried == [(LARGE, QUICK), (LARGE, PATIENT)]


async def test_ordinary_grammars_do_not_wait_for_large_ones() -> None:
    """One thread encoded all text and compiled all grammars: one that took 3 s held up every other request."""
    go, begun = threading.Event(), threading.Event()

    def wait() -> Outcome:
        begun.set()
        assert go.wait(60)
        return Outcome()

    with closing(compiler_of(Played(wait))) as compiler:
        large = [asyncio.create_task(compiler.compile(LARGE, [ORDINARY] * count)) for count in range(10)]
        await asyncio.to_thread(begun.wait)
        assert await compiler.compile(ORDINARY) is not None
        assert not any(one.done() for one in large)
        go.set()
        assert all(await asyncio.gather(*large))


async def test_an_error_knows_which_of_several_grammars_it_is_about() -> None:
    class Refusing(Played):
        def run(self, trial: Trial) -> Outcome:
            return Outcome(error="is wrong", place=2)

    with closing(compiler_of(Refusing())) as compiler, pytest.raises(RefusedGrammar, match="^is wrong$") as caught:
        await compiler.compile(None, [ORDINARY] * 3)
    assert caught.value.place == 2
