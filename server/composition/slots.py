"""How many sequences an executor runs at a time where no flag says: measured at the first start, kept in the cache."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import torch

from engine.measure.profiler import Profiler
from engine.measure.slots import COLUMNS, ROWS, FoundSlots, find_slots
from models.files import replace_file
from models.network.loader import LoadedModel
from models.text import Text
from scheduler.serving_time.profile_file import Conditions, digest
from server.cli.config import ServeConfig
from server.composition.devices import capacity_tokens, conditions_of, torch_threads

log = logging.getLogger(__name__)

CUDA_SLOTS = 256
"""Sequences at a time on a CUDA device, where throughput rises beyond what a quick measurement reaches."""

TIME_LIMIT = 3.0
"""Seconds that the measurement may take, about."""


@dataclass(frozen=True, slots=True)
class MeasuredSlots:
    """What was measured, and under which conditions."""

    conditions: Conditions
    compiled: bool
    """Whether this server's own kernels computed."""
    slots: int


def choose_slots(
    config: ServeConfig,
    model: LoadedModel,
    text: Text,
    cache: Path,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """The sequences that an executor shall run at a time: those of --max-num-seqs, else what the machine gains by."""
    if config.max_num_seqs is not None:
        return config.max_num_seqs
    held = max(1, capacity_tokens(config, model) // COLUMNS)
    if model.device.type == "cuda":
        return min(held, CUDA_SLOTS)
    conditions = conditions_of(config, model)
    path = cache / "slots" / f"{digest(conditions)}{'-compiled' if model.reads_exactly else ''}.json"
    slots = _read(path, conditions)
    if slots is None:
        slots, complete = _measure(config, model, text, min(held, ROWS[-1]), clock)
        if not complete:
            log.warning(
                "%d sequences run at a time until the next start, which measures again: measuring this busy or slow "
                "machine took more than %g s; --max-num-seqs sets another number",
                slots,
                TIME_LIMIT,
            )
        else:
            log.info("%d sequences run at a time, as measured (%s); --max-num-seqs sets another number", slots, path)
            if held >= ROWS[-1]:  # else memory decides, of which there may be more another time
                _keep(path, MeasuredSlots(conditions, model.reads_exactly, slots))
    return min(held, slots)


def _measure(config: ServeConfig, model: LoadedModel, text: Text, most: int, clock: Callable[[], float]) -> FoundSlots:
    profiler = Profiler(
        model,
        text,
        capacity_tokens=most * COLUMNS,
        max_rows=most,
        chunk_tokens=config.chunk_tokens(model.device.type),
        clock=clock,
    )
    before = torch.get_num_threads()
    torch.set_num_threads(torch_threads(config, model))
    try:
        return find_slots(partial(profiler.quickest_step, length=COLUMNS), most, TIME_LIMIT, profiler.now)
    finally:
        torch.set_num_threads(before)


def _read(path: Path, conditions: Conditions) -> int | None:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=MeasuredSlots)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        log.warning("the number of sequences at a time is measured again: %s: %s", path, error)
        return None
    return found.slots if found.conditions == conditions else None


def _keep(path: Path, measured: MeasuredSlots) -> None:
    try:
        with replace_file(path) as file:
            file.write(msgspec.json.encode(measured))
    except OSError as error:
        log.warning("the number of sequences at a time is measured again at the next start: %s: %s", path, error)
