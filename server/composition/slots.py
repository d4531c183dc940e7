"""Sequences at a time: without a flag measured at the first start, and again where noisy or where serving disagrees."""

import logging
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Annotated

import msgspec
import psutil
import torch

from engine.measure.profiler import QUICK_REPEATS, Profiler
from engine.measure.slots import COLUMNS, ROWS, find_slots
from engine.measure.timing import Timing, Timings
from engine.simulated.machine import Cost
from models.errors import UserError
from models.files import replace_file
from models.machine import usable_cores
from models.network.loader import LoadedModel
from models.text import Text
from scheduler.serving_time.profile_file import Conditions, digest, load_profile
from server.composition.devices import capacity_tokens, conditions_of, open_profiler, torch_threads
from server.config import ServeConfig

log = logging.getLogger(__name__)

CUDA_SLOTS = 256  # on CUDA, where throughput rises beyond a quick measurement

TIME_LIMIT = 3.0  # seconds, about


# share of the cores for other work beyond which a measurement is noisy: two niced loops on two cores took half and made
# 8 slots of 32
OTHERS = 0.1

PROMPTS, LONGER = (16, COLUMNS), 4 * COLUMNS  # tokens; slow and small machines time the first only

TICK = 0.01  # seconds, resolution of the system's CPU time


class MeasuredSlots(msgspec.Struct, frozen=True):
    slots: Annotated[int, msgspec.Meta(ge=1)]
    measured_at: str = ""  # ISO 8601
    others: float = 0.0  # share of the cores that other work had
    timings: Timings = Timings()  # made beside


def choose_slots(
    config: ServeConfig, model: LoadedModel, text: Text, cache: Path, clock: Callable[[], float] = time.perf_counter
) -> MeasuredSlots:
    """With the steps and prefills that were timed beside, if any."""
    given, on_gpu = config.max_num_seqs, model.device.type == "cuda"
    if given is not None and on_gpu:
        return MeasuredSlots(given)
    held = max(1, capacity_tokens(config, model) // COLUMNS)
    if on_gpu:
        return MeasuredSlots(min(held, CUDA_SLOTS))
    kernels = "compiled" if model.reads_exactly else "torch"
    conditions = conditions_of(config, model)
    path = cache / "slots" / f"{digest(conditions)}-{kernels}.json"
    kept = _read(path)
    if kept is None or not kept.timings.prefill or kept.others > OTHERS or _disagrees(kept.slots, cache, conditions):
        measured, complete = _measure(config, model, text, min(held, ROWS[-1]), clock)
        if complete and (kept is None or measured.others <= max(kept.others, OTHERS)):
            kept = measured
            if held >= ROWS[-1]:  # else limited by memory, which may grow
                _keep(path, measured)
        if given is None:
            _tell(kept or measured, measured, path, complete=complete)
        kept = kept or measured
    return msgspec.structs.replace(kept, slots=given or min(held, kept.slots))


def _tell(used: MeasuredSlots, measured: MeasuredSlots, path: Path, *, complete: bool) -> None:
    if not complete:
        why = f"measuring this busy or slow machine took more than {TIME_LIMIT:g} s; --max-num-seqs sets another number"
        log.warning("%d sequences run at a time until the next start, which measures again: %s", used.slots, why)
    elif used is measured:
        busy = f"{measured.others:.0%} of the cores had other work: the next start measures again"
        how = busy if measured.others > OTHERS else path
        log.info("%d sequences run at a time, as measured (%s); --max-num-seqs sets another", used.slots, how)


def _measure(
    config: ServeConfig, model: LoadedModel, text: Text, most: int, clock: Callable[[], float]
) -> tuple[MeasuredSlots, bool]:
    profiler = open_profiler(config, model, text, most, most * COLUMNS, clock)
    threads = torch.get_num_threads()
    torch.set_num_threads(torch_threads(config, model))
    began, others, steps = time.monotonic(), others_seconds(), list[Timing]()

    def step(rows: int, columns: int = COLUMNS) -> float:
        steps.append(Timing(rows, columns, profiler.quickest_step(rows, columns)))
        return steps[-1].seconds

    try:
        found = find_slots(step, most, TIME_LIMIT, profiler.now)
        prompts = [_prefill(profiler, PROMPTS[0])]
        longer = min(LONGER, model.context_length)
        if found.complete and profiler.holds(ROWS[0], longer):
            prompts.append(_prefill(profiler, PROMPTS[1]))
            step(ROWS[0], longer)  # what a row's length costs
    finally:
        torch.set_num_threads(threads)
    share = (others_seconds() - others) / (max(time.monotonic() - began, TICK) * usable_cores())
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return MeasuredSlots(found.rows, now, max(0.0, share), Timings((*prompts,), (*steps,))), found.complete


def _prefill(profiler: Profiler, length: int) -> Timing:
    """The quickest, as steps are timed."""
    return Timing(1, length, min(profiler.prefill(1, length) for _ in range(QUICK_REPEATS)))


def timings_of(cost: Cost, slots: int) -> Timings:
    """Of a virtual device."""
    steps = ((1, COLUMNS), (slots, COLUMNS), (slots, LONGER))
    prefill = tuple(Timing(1, length, cost.prefill(1, length)) for length in PROMPTS)
    return Timings(prefill, tuple(Timing(*step, cost.decode(*step, 1)) for step in steps))


def others_seconds() -> float:
    """CPU seconds of other processes on our cores since boot."""
    times = psutil.cpu_times(percpu=True)
    mine = [times[core] for core in os.sched_getaffinity(0) if core < len(times)]
    return sum(one.user + one.nice + one.system + one.steal for one in mine) - time.process_time()


def _disagrees(slots: int, cache: Path, conditions: Conditions) -> bool:
    try:
        profile = load_profile(cache, conditions, learned=True)
    except UserError:  # reported where prices are read
        return False
    if profile is None or not profile.model.gains_by_rows:
        return False
    found = find_slots(lambda rows: profile.model.iteration(float(rows), COLUMNS), ROWS[-1], inf, lambda: 0.0)
    return found.rows != slots


def _read(path: Path) -> MeasuredSlots | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=MeasuredSlots)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        log.warning("the number of sequences at a time is measured again: %s: %s", path, error)
        return None


def _keep(path: Path, slots: MeasuredSlots) -> None:
    try:
        with replace_file(path) as file:
            file.write(msgspec.json.encode(slots))
    except OSError as error:
        log.warning("the number of sequences at a time is measured again at the next start: %s: %s", path, error)
