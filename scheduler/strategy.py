"""The table of strategies: each a named combination of the scheduler's parts, one choice a column (design 2.1).

A strategy is data. To add one, add a row here, and an entry in a part's own table where a column needs a new choice;
or keep both outside the tree, in a file, a package, or an installed entry point.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from engine.messages import Entry, Overflow, Terms
from models.errors import StrategyError
from scheduler.plan import Returns

if TYPE_CHECKING:
    from scheduler.batching.batcher import BatcherFactory, OrderFactory


GROUP = "lengthwise.strategies"
"""Entry points of installed packages that name rows of the table of strategies."""


def load_outside(name: str) -> object:
    """The object that PACKAGE:ROW, FILE.py:ROW or the name of an entry point stands for.

    Raises KeyError for a name of none of these forms, and StrategyError where the object cannot be had.
    """
    source, colon, attribute = name.rpartition(":")
    try:
        if not colon:
            return next(iter(entry_points(group=GROUP, name=name))).load()
        from_file = source.endswith(".py")
        module = _run_file(Path(source).expanduser().resolve()) if from_file else importlib.import_module(source)
    except StopIteration:
        raise KeyError(name) from None
    except Exception as error:  # anything may happen in code of others
        raise StrategyError(f"strategy {name}: cannot be loaded: {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        raise StrategyError(f"strategy {name}: {source} has no {attribute}")
    return getattr(module, attribute)


@cache
def _run_file(file: Path) -> SimpleNamespace:
    """The names that a file makes; run once, however often it is asked for."""
    return SimpleNamespace(**run_path(str(file)))


EMBED = Terms()
EMBED_BLOCKING = Terms(entry=Entry.EMBED_BLOCKING)
SHAPE = Terms(entry=Entry.SHAPE)
CLOSED = Terms(closed=True)
CLOSED_SPLIT = Terms(closed=True, overflow=Overflow.SPLIT)


class Length(StrEnum):
    """Where predicted lengths come from."""

    NONE = "none"
    """No lengths are predicted."""
    OWN = "own-embeddings"
    """The served model's own token embeddings and a forest that learns while serving."""
    FOREST = "forest"
    """Magnus: sentence embeddings and a random forest."""
    PROXY = "proxy"
    """SSJF: a fine-tuned encoder with a small head."""
    ORACLE = "oracle"
    """The true length, which some requests bring along."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One row of the table; texts name an entry of their part's own table, and what makes a part stands for itself."""

    name: str
    length: str = Length.NONE
    """Where predicted lengths come from."""
    order: str | OrderFactory = "fcfs"
    batching: str | BatcherFactory = "join"
    refill: Terms = EMBED
    """How rows get into a batch, and how their slots are filled again."""
    slices: bool = False
    """Whether a batch ends after `slice_length` iterations."""
    returns: Returns = Returns.ROW_END
    placement: str = "idle-first"
    memory: str = "scale"
    preemption: str = "none"
    """Whether running rows make way for waiting requests."""
    serving_time: str | None = None
    """How serving times of batches are estimated; None where they are not asked for. Magnus's batches go by them, the
    highest response ratio next, else by arrival."""
    calibrated: bool = True
    """Whether predictions count for what such predictions turned out to be; published systems take them as they are."""
    shared: bool = False
    """Whether clients share service, each with a queue of its own in this order."""
    quantization: str | None = None
    """How the model's weights are stored, where that is part of the comparison."""

    def __post_init__(self) -> None:
        """Raises ValueError for a predictor that there is none of."""
        Length(self.length)


_MAGNUS = Strategy(
    "",
    length="forest",
    batching="wma",
    refill=CLOSED_SPLIT,
    returns=Returns.BATCH_END,
    memory="predicted",
    calibrated=False,
)

_SLS = Strategy(
    "",
    batching="round-robin-fixed",
    refill=CLOSED,
    returns=Returns.BATCH_END,
    placement="round-robin",
    memory="fixed",
)
_SLICED = Strategy(
    "",
    batching="dp",
    refill=CLOSED,
    slices=True,
    placement="round-robin",
    memory="slice",
    serving_time="bilinear",
)


def _modes(base: Strategy) -> tuple[Strategy, ...]:
    """Three modes of a strategy: one request at a time, closed batches, rows that join as others leave (SSJF, 3.2)."""
    return (
        replace(base, name=f"{base.name}-none", batching="one", refill=CLOSED),
        replace(base, name=f"{base.name}-dynamic", batching="fixed", refill=CLOSED),
        replace(base, name=f"{base.name}-continuous"),
    )


_CCB = Strategy("ccb", refill=EMBED_BLOCKING, memory="fixed")
_ILS = Strategy("ils", batching="round-robin-join", refill=EMBED_BLOCKING, placement="round-robin", memory="whole")

_TABLE = (
    # Magnus's baselines
    Strategy("vs", batching="fixed", refill=CLOSED, returns=Returns.BATCH_END, memory="fixed"),
    Strategy("vsq", batching="fixed", refill=CLOSED, returns=Returns.BATCH_END, memory="fixed", quantization="int4"),
    _CCB,
    replace(_CCB, name="ccb-padded", refill=SHAPE),
    # Magnus, and what is left of it without its serving times, and without its batch sizes
    replace(_MAGNUS, name="glp", batching="wma-fixed", refill=CLOSED, memory="fixed"),
    replace(_MAGNUS, name="abp"),
    replace(_MAGNUS, name="magnus", serving_time="nearest"),
    # SCLS's baselines, and SCLS as it is put together part by part
    replace(_SLS, name="sls"),
    replace(_SLS, name="so", slices=True, returns=Returns.ROW_END),
    replace(_SLICED, name="pm", batching="dp-capped"),
    replace(_SLICED, name="ab"),
    replace(_SLICED, name="lb", placement="max-min"),
    replace(_SLICED, name="scls", batching="dp-adaptive", placement="max-min"),
    _ILS,
    replace(_ILS, name="ils-padded", refill=SHAPE),
    # SSJF in its three modes, and what it compares itself with: no prediction, and the true lengths
    *_modes(Strategy("fcfs", memory="fixed")),
    *_modes(Strategy("ssjf", length="proxy", order="sjf-aged", memory="fixed", calibrated=False)),
    *_modes(Strategy("sjf-oracle", length="oracle", order="sjf", memory="fixed", calibrated=False)),
    # Baton, and what it compares itself with; its "Benchmark" is fcfs-dynamic
    Strategy("pd", batching="fixed", refill=replace(CLOSED, prefill_together=False), memory="fixed"),
    Strategy("baton", refill=SHAPE),
    Strategy("baton-pd"),
    # Published orders of single requests, on Baton's batching
    Strategy("hrrn", length="own-embeddings", order="hrrn"),
    Strategy("srpt", length="own-embeddings", order="sjf", preemption="by-order"),
    Strategy("gittins", length="own-embeddings", order="gittins", preemption="by-order"),
    Strategy("boost", length="own-embeddings", order="boost"),
    Strategy("uniboost", order="boost-attained", preemption="by-order"),
    Strategy("hrrn-prompt", order="hrrn-prompt"),
    Strategy("fsp", length="own-embeddings", order="fair-sojourn"),
    Strategy("tie", length="own-embeddings", order="tail-inflated"),
    Strategy("trail", length="own-embeddings", order="sjf", preemption="by-order-early"),
    Strategy("mlfq", order="feedback", preemption="by-order"),
    Strategy("ltr", length="proxy", order="rank", preemption="by-order", calibrated=False),
    # A published admission, first come, first served
    Strategy("past-future", length="own-embeddings", memory="peak"),
    # Fair between clients, first come, first served within one (VTC)
    Strategy("fair", shared=True),
    # Ours: by arrival, a share of the work out of turn
    Strategy("lengthwise", length="own-embeddings", order="out-of-turn"),
)


class StrategyTable(Mapping[str, Strategy]):
    """Rows by name: those above, those that installed packages bring, and any PACKAGE:ROW or FILE.py:ROW."""

    def __init__(self, rows: tuple[Strategy, ...]) -> None:
        self._rows = {row.name: row for row in rows}

    def __getitem__(self, name: str) -> Strategy:
        """The row of a name; raises KeyError for an unknown one, and StrategyError for a row that cannot be had."""
        if name in self._rows:
            return self._rows[name]
        found = load_outside(name)
        if not isinstance(found, Strategy):
            raise StrategyError(f"strategy {name}: is a {type(found).__name__} and no scheduler.strategy.Strategy")
        return replace(found, name=name)

    def __iter__(self) -> Iterator[str]:
        installed = sorted(entry_points(group=GROUP).names)
        return chain(self._rows, (name for name in installed if name not in self._rows))

    def __len__(self) -> int:
        return sum(1 for _ in self)


STRATEGIES: Mapping[str, Strategy] = StrategyTable(_TABLE)
