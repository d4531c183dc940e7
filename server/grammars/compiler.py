"""Clients' grammars compiled off the event loop, once they have been tried where they do no harm.

Most take milliseconds. What takes longer is tried again with more time, one at a time, so that ordinary grammars need
not wait for it. Each is tried in time that nothing else wants, where there is enough of that, so that rows that run
need not wait either.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

import msgspec

from engine.sampling.grammar import Compiled, GrammarError, Grammars
from engine.sampling.params import Grammar
from server.grammars.trial import MEMORY, NICENESS, Exceeded, Outcome, Starved, Trial

QUICK, PATIENT = 0.15, 1.0
"""Seconds of a processor that a first trial may take, and a second."""

SPARE = 4.0
"""Seconds in which a trial must have had each second of a processor, while nothing else wants one."""

QUICK_TRIALS = 4
"""First trials that run at a time."""

REMEMBERED = 4096
"""Trials whose outcome is remembered."""


class RefusedGrammar(GrammarError):
    """A grammar that cannot be used, among several."""

    def __init__(self, message: str, place: int | None = None) -> None:
        super().__init__(message)
        self.place = place
        """Its place among those that were checked; None for the one to be compiled, and where it is not known."""


class Tester(Protocol):
    """Tries grammars, from any thread."""

    def run(self, trial: Trial) -> Outcome:
        """Raises Exceeded, Starved and TrialsFailed."""

    def close(self) -> None: ...


class GrammarCompiler:
    """Compiles a model's grammars. Event loop only."""

    def __init__(self, grammars: Grammars, tester: Tester) -> None:
        self.grammars = grammars
        self._tester = tester
        self._lock = threading.Lock()
        self._outcomes: OrderedDict[bytes, Outcome | None] = OrderedDict()  # None for those that were exceeded
        give_way = partial(os.nice, NICENESS)  # each thread has a niceness of its own
        self._pools = (
            (QUICK, ThreadPoolExecutor(QUICK_TRIALS, "grammars", give_way)),
            (PATIENT, ThreadPoolExecutor(1, "large grammars", give_way)),
        )

    async def compile(self, grammar: Grammar | None, checked: Sequence[Grammar] = ()) -> Compiled | None:
        """Compile a grammar, if there is one, and check others, each by itself.

        Raises RefusedGrammar, GrammarsFull and TrialsFailed.
        """
        run = asyncio.get_running_loop().run_in_executor
        for seconds, pool in self._pools:
            trial = Trial(tuple(checked), grammar, seconds)
            with suppress(Exceeded):
                with suppress(Starved):
                    return await run(pool, self._compile, replace(trial, spare=SPARE * seconds))
                return await run(pool, self._compile, trial)
        limit = f"{PATIENT:g} s or {MEMORY // 2**20} MiB"
        raise RefusedGrammar(f"takes more than {limit} to be compiled; make it smaller or simpler")

    def give_up(self) -> None:
        """Let calls whose grammars are under way be told that the server ends; those that come later too."""
        self._tester.close()

    def close(self) -> None:
        """Give up what is under way, and wait for the threads."""
        self.give_up()
        for _, pool in self._pools:
            pool.shutdown(cancel_futures=True)

    def _compile(self, trial: Trial) -> Compiled | None:
        outcome = self._try(trial)
        if outcome.error is not None:
            raise RefusedGrammar(outcome.error, outcome.place)
        return None if trial.compiled is None else self.grammars.compile(trial.compiled, outcome.bytes)

    def _try(self, trial: Trial) -> Outcome:
        """The outcome of a trial that may have been made before. Raises Exceeded and Starved."""
        key = hashlib.sha256(msgspec.msgpack.encode(replace(trial, spare=None))).digest()
        with self._lock:
            known, outcome = key in self._outcomes, self._outcomes.get(key)
        if not known:
            with suppress(Exceeded):
                outcome = self._tester.run(trial)
        with self._lock:
            self._outcomes[key] = outcome
            self._outcomes.move_to_end(key)
            if len(self._outcomes) > REMEMBERED:
                self._outcomes.popitem(last=False)
        if outcome is None:
            raise Exceeded
        return outcome
