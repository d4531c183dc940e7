"""Records requests on executors that take real time, as a simulation of them is recorded.

Starts no executor and loads nothing; it sees executors as the scheduler does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from engine.messages import Report, StepReport, Tally
from loadgen.experiments.playing import serve
from loadgen.simulate.prediction import Predict
from loadgen.simulate.simulation import Simulation, Watch, WorkerRecord, served
from loadgen.workload.lengths import Lengths
from scheduler.assembly import Parts
from scheduler.clock import MonotonicClock, background
from scheduler.dispatcher import Dispatcher
from scheduler.request import Request
from scheduler.worker import Port
from server.process.relay import Listener, Relay

WARM_UP = 4
"""Requests that are played before a run and not recorded."""
WARM_UP_TOKENS = 8

Prompts = Sequence[tuple[int, ...]]


@dataclass(slots=True)
class Record:
    """The work of one executor over one run. A step that reads prompts counts as prefill."""

    last: float | None = None
    """When its latest report came, in seconds of the dispatcher's clock."""
    prefill: float = 0.0
    decode: float = 0.0
    row_decode: float = 0.0
    tally: Tally = Tally()

    def add(self, report: StepReport, now: float) -> None:
        """Count a report that came at the time `now`."""
        turn = report.tally
        self.last = now
        self.tally += turn
        if turn.prompt:
            self.prefill += report.seconds
        elif rows := turn.generated + turn.invalid:  # each row of an iteration makes one token, valid or not
            self.decode += report.seconds
            self.row_decode += rows * report.seconds

    def finished(self, origin: float) -> WorkerRecord:
        """The record of the whole run; `origin` is when it began."""
        completion = 0.0 if self.last is None else self.last - origin
        return WorkerRecord(completion, self.prefill, self.decode, self.row_decode, self.tally)


@dataclass(frozen=True, slots=True)
class Recorder:
    """Plays requests, in order of arrival, on executors that run and report to the relay."""

    ports: Sequence[Port]
    relay: Relay
    requests: Sequence[Lengths]
    prompts: Prompts
    max_tokens: int
    """Tokens that every request asks for; how many it generates is its own."""
    clock: MonotonicClock = field(default_factory=MonotonicClock)

    async def warm_up(self, parts: Parts, predict: Predict | None) -> None:
        """A few short requests, so that a run finds the executors as later ones do. Raises UserError.

        Parts keep state and may predict anew: those of the run are others.
        """
        few = [
            Lengths(0.0, one.input_length, min(one.output_length, WARM_UP_TOKENS)) for one in self.requests[:WARM_UP]
        ]
        async with self._dispatching(parts, lambda report: None) as dispatcher:
            await self._serve(dispatcher, few, predict, lambda ended: None)

    async def record(
        self, parts: Parts, predict: Predict | None, watch: Watch, overhear: Listener = lambda report: None
    ) -> Simulation:
        """The record of all requests and executors. Raises UserError when a request fails.

        `overhear` is called with every report of this run.
        """
        records = {port.info.index: Record() for port in self.ports}

        def note(report: Report) -> None:
            overhear(report)
            if isinstance(report, StepReport):
                records[report.executor].add(report, self.clock.now())

        async with self._dispatching(parts, note) as dispatcher:
            done = await self._serve(dispatcher, self.requests, predict, watch)
        origin = done[0].times.arrival - self.requests[0].arrival
        workers = tuple(record.finished(origin) for record in records.values())
        return Simulation(tuple(served(request, origin) for request in done), workers)

    async def _serve(
        self, dispatcher: Dispatcher, requests: Sequence[Lengths], predict: Predict | None, watch: Watch
    ) -> list[Request]:
        prompts = self.prompts[: len(requests)]
        return await serve(
            dispatcher, self.clock, requests, prompts, max_tokens=self.max_tokens, predict=predict, watch=watch
        )

    @asynccontextmanager
    async def _dispatching(self, parts: Parts, note: Listener) -> AsyncIterator[Dispatcher]:
        dispatcher = Dispatcher(parts, self.ports, self.clock)

        def listen(report: Report) -> None:
            note(report)
            dispatcher.receive(report)

        with self.relay.send_to(listen):
            async with background(dispatcher.run(), "dispatcher"):
                yield dispatcher
