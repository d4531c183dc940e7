"""What a simulated device has to tell, gathered until the next report. Knows no batch and no time."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.messages import BatchShape, HandedBack, RowId, RowUpdate, StepReport, Tally


@dataclass(slots=True)
class Outbox:
    """The parts of a StepReport."""

    updates: list[RowUpdate] = field(default_factory=list)
    begun: tuple[RowId, ...] = ()
    handed_back: list[HandedBack] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    @property
    def urgent(self) -> bool:
        """Whether it holds more than figures."""
        return bool(self.updates or self.begun or self.handed_back)

    @property
    def counted(self) -> bool:
        """Whether it holds figures."""
        return self.tally != Tally()

    def report(self, executor: int, step: int, shape: BatchShape, seconds: float) -> StepReport:
        return StepReport(
            executor, step, tuple(self.updates), shape, seconds, self.begun, tuple(self.handed_back), self.tally
        )
