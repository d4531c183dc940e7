"""The table of strategies (design 2.1): add a row, or bring one from outside."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from runpy import run_path
from traceback import extract_tb
from types import SimpleNamespace
from typing import TYPE_CHECKING

from engine.messages import BatchPolicy, Entry, Overflow
from models.errors import StrategyError
from scheduler.plan import Returns

if TYPE_CHECKING:
    from scheduler.batching.batcher import BatcherFactory, OrderFactory


GROUP = "lengthwise.strategies"  # entry points


def load_outside(name: str) -> object:
    """PACKAGE:ROW, FILE.py:ROW or an entry point. Raises KeyError for other forms, StrategyError on failure."""
    source, colon, attribute = name.rpartition(":")
    if source.endswith(".py") and not Path(source).expanduser().is_file():
        raise StrategyError(f"strategy {name}: there is no file {source}")
    try:
        if not colon:
            return next(iter(entry_points(group=GROUP, name=name))).load()
        from_file = source.endswith(".py")
        module = _run_file(Path(source).expanduser().resolve()) if from_file else importlib.import_module(source)
    except StopIteration:
        raise KeyError(name) from None
    except Exception as error:  # others' code
        raise StrategyError(f"strategy {name}: cannot be loaded: {describe(error, name)}") from error
    if not hasattr(module, attribute):
        raise StrategyError(f"strategy {name}: {source} has no {attribute}")
    return getattr(module, attribute)


def describe(error: Exception, name: str) -> str:
    """With its line."""
    file = name.rpartition(":")[0]
    lines = [each.lineno for each in extract_tb(error.__traceback__) if file and each.filename.endswith(file)]
    return f"{type(error).__name__}: {error}" + (f" (line {lines[-1]})" if lines else "")


@cache
def _run_file(file: Path) -> SimpleNamespace:
    return SimpleNamespace(**run_path(str(file)))


EMBED = BatchPolicy()
EMBED_BLOCKING = BatchPolicy(entry=Entry.EMBED_BLOCKING)
SHAPE = BatchPolicy(entry=Entry.SHAPE)
CLOSED = BatchPolicy(closed=True)
SPLIT = BatchPolicy(closed=True, overflow=Overflow.SPLIT)


class Length(StrEnum):
    NONE = "none"
    OWN = "own-embeddings"  # the model's embeddings, online
    FOREST = "forest"  # Magnus
    PROXY = "proxy"  # SSJF
    ORACLE = "oracle"  # from the request


@dataclass(frozen=True, slots=True)
class Strategy:
    """Texts name entries of a part's table."""

    name: str
    length: str = Length.NONE
    order: str | OrderFactory = "fcfs"
    batching: str | BatcherFactory = "join"
    refill: BatchPolicy = EMBED
    slices: bool = False  # of `slice_length`
    returns: Returns = Returns.ROW_END
    placement: str = "idle-first"
    memory: str = "scale"
    preemption: str = "none"
    # for Magnus's response ratios
    serving_time: str | None = None
    calibrated: bool = True  # unlike published systems
    shared: bool = False
    quantization: str | None = None  # where part of the comparison

    def __post_init__(self) -> None:
        Length(self.length)

    @property
    def only_admits(self) -> bool:
        """As a gateway does."""
        return not self.refill.closed and self.preemption == "none"


_MAGNUS = Strategy(
    "", length="forest", batching="wma", refill=SPLIT, returns=Returns.BATCH_END, memory="predicted", calibrated=False
)

_SLS = Strategy(
    "", batching="round-robin-fixed", refill=CLOSED, returns=Returns.BATCH_END, placement="round-robin", memory="fixed"
)
_SLICED = Strategy(
    "", batching="dp", refill=CLOSED, slices=True, placement="round-robin", memory="slice", serving_time="bilinear"
)


def _modes(base: Strategy) -> tuple[Strategy, ...]:
    """Single, static, continuous (SSJF, 3.2)."""
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
    # Magnus, and ablations
    replace(_MAGNUS, name="glp", batching="wma-fixed", refill=CLOSED, memory="fixed"),
    replace(_MAGNUS, name="abp"),
    replace(_MAGNUS, name="magnus", serving_time="nearest"),
    # SCLS's baselines and parts
    replace(_SLS, name="sls"),
    replace(_SLS, name="so", slices=True, returns=Returns.ROW_END),
    replace(_SLICED, name="pm", batching="dp-capped"),
    replace(_SLICED, name="ab"),
    replace(_SLICED, name="lb", placement="max-min"),
    replace(_SLICED, name="scls", batching="dp-adaptive", placement="max-min"),
    _ILS,
    replace(_ILS, name="ils-padded", refill=SHAPE),
    # SSJF, beside none and oracle
    *_modes(Strategy("fcfs", memory="fixed")),
    *_modes(Strategy("ssjf", length="proxy", order="sjf-aged", memory="fixed", calibrated=False)),
    *_modes(Strategy("sjf-oracle", length="oracle", order="sjf", memory="fixed", calibrated=False)),
    # Baton and comparisons; its "Benchmark" is fcfs-dynamic
    Strategy("pd", batching="fixed", refill=replace(CLOSED, prefill_together=False), memory="fixed"),
    Strategy("baton", refill=SHAPE),
    Strategy("baton-pd"),
    # orders, on Baton's batching
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
    # orders of agents' runs
    Strategy("program-fcfs", order="program-arrival"),
    Strategy("plas", order="program-attained"),
    Strategy("justitia", length="own-embeddings", order="program-finish"),
    Strategy("thunder", order="program-paused"),
    # admission, FCFS
    Strategy("past-future", length="own-embeddings", memory="peak"),
    # VTC
    Strategy("fair", shared=True),
    # ours
    Strategy("lengthwise", length="own-embeddings", order="out-of-turn"),
)


class StrategyTable(Mapping[str, Strategy]):
    """Also packages', PACKAGE:ROW and FILE.py:ROW."""

    def __init__(self, rows: tuple[Strategy, ...]) -> None:
        self._rows = {row.name: row for row in rows}

    def __getitem__(self, name: str) -> Strategy:
        """Raises KeyError or StrategyError."""
        if name in self._rows:
            return self._rows[name]
        found = load_outside(name)
        if not isinstance(found, Strategy):
            raise StrategyError(f"strategy {name}: is a {type(found).__name__} and no scheduler.strategy.Strategy")
        return replace(found, name=name)

    @property
    def own(self) -> Collection[str]:
        """Those of this table, whose code is this version's."""
        return self._rows

    def __iter__(self) -> Iterator[str]:
        return chain(self._rows, (name for name in sorted(entry_points(group=GROUP).names) if name not in self._rows))

    def __len__(self) -> int:
        return sum(1 for _ in self)


STRATEGIES = StrategyTable(_TABLE)
