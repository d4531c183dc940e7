"""The record of a real executor's work, made from its reports, in the form that a simulated one keeps."""

from __future__ import annotations

from dataclasses import dataclass

from engine.messages import StepReport, Tally
from loadgen.simulate.simulation import WorkerRecord


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
