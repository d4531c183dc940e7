"""A row of a simulated device: lengths in place of tokens. Knows no batch and no time."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.group import Group, Rank
from engine.messages import FinishReason, RowId, RowSpec, RowUpdate, Terms

TOKEN = 0
"""The id of every token generated here: none is read, but they are counted."""


@dataclass(frozen=True, slots=True)
class SimulatedKv:
    """K and V of a row outside the batch."""

    bytes: int
    in_host_memory: bool


@dataclass(eq=False, slots=True)
class SimulatedRow:
    """One sequence. Rows compare by identity."""

    spec: RowSpec
    rank: Rank = (0, 0)
    group: Group = field(default_factory=lambda: Group(Terms()))
    kv: SimulatedKv | None = None
    setbacks: int = 0
    cached_prompt: int = 0
    """Tokens of its prompt that were copied in place of being read."""
    generated: int = 0
    """Tokens made so far; while the row runs, as of `since`."""
    reported: int = 0
    """Tokens reported so far."""
    since: int = 0
    """The batch's iteration at which it joined."""
    offset: int = 0
    """Columns of the row less those that the batch had opened when it joined."""
    ends_at: int = 0
    """The batch's iteration that brings its last token."""
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
    def started(self) -> bool:
        return self.generated > 0

    @property
    def ended(self) -> bool:
        return self.generated >= self.total

    @property
    def length(self) -> int:
        """Tokens, prompt and generated."""
        return len(self.spec.prompt) + self.generated

    @property
    def cached_tokens(self) -> int:
        """Tokens whose K and V exist once there is a generated token: all but the newest."""
        return self.length - 1

    @property
    def scores_prompt(self) -> bool:
        return self.spec.sampling.prompt_logprobs is not None

    def drop_kv(self) -> None:
        self.kv = None

    def report(self) -> RowUpdate:
        """All tokens that were not reported yet."""
        cached = 0 if self.reported else self.cached_prompt
        count, self.reported = self.generated - self.reported, self.generated
        reason = self._finish_reason() if self.ended else None
        return RowUpdate(self.row_id, (TOKEN,) * count, cached_prompt=cached, finish_reason=reason)

    def _finish_reason(self) -> FinishReason:
        """Replayed answers end as the recorded ones did, by an end token."""
        return FinishReason.STOP if self.total == self.spec.sampling.replay_tokens else FinishReason.LENGTH
