"""The table of strategies: each a named combination of the scheduler's parts, one choice a column (design, 4).

A strategy is data. To add one, add a row here, and an entry in a part's own table where a column needs a new choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from engine.messages import Entry, Overflow, Terms
from scheduler.plan import Returns

EMBED = Terms()
SHAPE = Terms(entry=Entry.SHAPE)
CLOSED = Terms(closed=True)
CLOSED_SPLIT = Terms(closed=True, overflow=Overflow.SPLIT)


@dataclass(frozen=True, slots=True)
class Strategy:
    """One row of the table; texts name an entry of their part's own table."""

    name: str
    length: str = "none"
    """Who predicts how long answers become."""
    order: str = "fcfs"
    batching: str = "join"
    refill: Terms = EMBED
    """How rows get into a batch, and what becomes of their slots."""
    slices: bool = False
    """Whether a batch ends after `slice_length` iterations."""
    returns: Returns = Returns.ROW_END
    placement: str = "idle-first"
    memory: str = "scale"
    batch_order: str = "fcfs"
    """Which batch goes first, where batches are arranged before an executor is idle."""
    preemption: str = "none"
    """Whether running rows make way for what waits."""
    serving_time: str | None = None
    """Who estimates what a batch takes; None where nobody asks."""
    quantization: str | None = None
    """How the model's weights are kept, where that is part of what is compared."""


_MAGNUS = Strategy(
    "", length="forest", batching="wma", refill=CLOSED_SPLIT, returns=Returns.BATCH_END, memory="predicted"
)

_SLS = Strategy(
    "",
    batching="dealt-fixed",
    refill=CLOSED,
    returns=Returns.BATCH_END,
    placement="round-robin",
    memory="fixed",
)
_SLICED = Strategy("", refill=CLOSED, slices=True, placement="round-robin", memory="slice", serving_time="bilinear")


def _modes(whose: Strategy) -> tuple[Strategy, ...]:
    """One after another, in batches that nobody joins, and with rows that join as others leave (SSJF, section 3.2)."""
    return (
        replace(whose, name=f"{whose.name}-none", batching="one", refill=CLOSED),
        replace(whose, name=f"{whose.name}-dynamic", batching="fixed", refill=CLOSED),
        replace(whose, name=f"{whose.name}-continuous"),
    )


_TABLE = (
    # Magnus's baselines
    Strategy("vs", batching="fixed", refill=CLOSED, returns=Returns.BATCH_END, memory="fixed"),
    Strategy("vsq", batching="fixed", refill=CLOSED, returns=Returns.BATCH_END, memory="fixed", quantization="int4"),
    Strategy("ccb", refill=SHAPE, memory="fixed"),
    # Magnus, and what is left of it without its serving times, and without its batch sizes
    replace(_MAGNUS, name="glp", batching="wma-fixed", refill=CLOSED, memory="fixed"),
    replace(_MAGNUS, name="abp"),
    replace(_MAGNUS, name="magnus", batch_order="hrrn", serving_time="nearest"),
    # SCLS's baselines, and SCLS as it is put together part by part
    replace(_SLS, name="sls"),
    replace(_SLS, name="so", slices=True, returns=Returns.ROW_END),
    replace(_SLICED, name="pm", batching="dp-capped"),
    replace(_SLICED, name="ab", batching="dp"),
    replace(_SLICED, name="lb", batching="dp", placement="max-min"),
    replace(_SLICED, name="scls", batching="dp-adaptive", placement="max-min"),
    Strategy("ils", batching="dealt-join", refill=SHAPE, placement="round-robin", memory="whole"),
    # SSJF in its three modes, and what it compares itself with: no prediction, and the true lengths
    *_modes(Strategy("fcfs", memory="fixed")),
    *_modes(Strategy("ssjf", length="proxy", order="sjf-aged", memory="fixed")),
    *_modes(Strategy("sjf-oracle", length="oracle", order="sjf", memory="fixed")),
    # Baton, and what it compares itself with
    Strategy("benchmark", batching="fixed", refill=CLOSED, memory="fixed"),
    Strategy("pd", batching="fixed", refill=replace(CLOSED, prefill_together=False), memory="fixed"),
    Strategy("baton", refill=SHAPE),
    Strategy("baton-pd"),
    # Ours: the cheapest first by predictions, without letting anybody wait much longer than in line
    Strategy("lengthwise", length="forest", batching="join-cheapest", placement="idle-least", preemption="swap"),
)

STRATEGIES: Mapping[str, Strategy] = MappingProxyType({strategy.name: strategy for strategy in _TABLE})
