"""A row of a simulated device: lengths in place of tokens. Knows no batch and no time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from engine.group import Group
from engine.messages import FinishReason, RowId, RowSpec, RowUpdate

Rank: TypeAlias = tuple[int, int]
"""(priority, number of the admission); the least is the best."""

TOKEN = 0
"""The id of every token generated here: nobody reads them, but they are counted."""


@dataclass(eq=False, slots=True)
class SimulatedRow:
    """One sequence. Rows compare by identity."""

    spec: RowSpec
    rank: Rank
    group: Group
    generated: int = 0
    """Tokens made so far; while the row runs, as of `since`."""
    told: int = 0
    """Tokens reported so far."""
    since: int = 0
    """The batch's iteration at which it joined."""
    offset: int = 0
    """Its columns less the columns that the batch had opened when it joined."""
    ends_at: int = 0
    """The batch's iteration that brings its last token."""
    in_host_memory: bool = False
    """Whether its K and V must be copied before it can run."""
    total: int = field(init=False)
    """Tokens that it will have generated at its end."""

    def __post_init__(self) -> None:
        sampling = self.spec.sampling
        replayed = sampling.replay_tokens
        self.total = sampling.max_tokens if replayed is None else min(replayed, sampling.max_tokens)

    @property
    def row_id(self) -> RowId:
        return self.spec.row_id

    @property
    def ended(self) -> bool:
        return self.generated >= self.total

    @property
    def context(self) -> int:
        """Tokens to read before the next one can be generated."""
        return len(self.spec.prompt) + self.generated

    @property
    def kv_length(self) -> int:
        """Tokens whose K and V are there once it has a token: all but the newest's."""
        return self.context - 1

    def tell(self) -> RowUpdate:
        """All that was not reported yet."""
        count, self.told = self.generated - self.told, self.generated
        return RowUpdate(self.row_id, (TOKEN,) * count, finish_reason=self._finish_reason() if self.ended else None)

    def _finish_reason(self) -> FinishReason:
        """Replayed answers end as the recorded ones did, by an end token."""
        return FinishReason.STOP if self.total == self.spec.sampling.replay_tokens else FinishReason.LENGTH
