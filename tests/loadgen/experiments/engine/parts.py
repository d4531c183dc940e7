"""Parts of tests of benchmarks in this process: a clock that ticks whenever it is read, and a tiny subject."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

from loadgen.experiments.engine.setup import Subject, load_plain
from models.network.loader import LoadedModel
from models.text import Text


def ticking() -> Callable[[], float]:
    """Seconds: 0, 1, 2, and so on."""
    count = itertools.count()
    return lambda: float(next(count))


def subject_of(model: LoadedModel, text: Text) -> Subject:
    return Subject(model, text, partial(load_plain, model))
