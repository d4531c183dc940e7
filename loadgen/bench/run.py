"""One benchmark of one server: connect, warm up, play the schedule, measure. Knows no flags and prints nothing."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import TypeAlias

from loadgen.bench.measures import Figures, measure
from loadgen.bench.metrics import DEFAULT_METRICS
from loadgen.client.client import Client, ServerError, Target, connect
from loadgen.client.request import Prompt, RequestForm
from loadgen.load.arrivals import Arrivals
from loadgen.load.load import Observer, Run, play
from loadgen.load.schedule import NO_CANCELLATIONS, Cancellations, schedule

Watch: TypeAlias = Callable[[str, int], AbstractContextManager[Observer]]
"""Opens the observer of some requests, given a title and their number."""

SPARE_FILES = 64
"""The open files that a process needs besides its connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """All that a benchmark does to a server. Percentiles are in (0, 100], goals are seconds by metric."""

    target: Target
    model: str | None = None
    """None takes the first model that the server lists."""
    endpoint: str | None = None
    fields: Mapping[str, object] = field(default_factory=dict)
    arrivals: Arrivals | None = None
    """None takes the times of the prompts, if they have any; else all are due at once."""
    seed: int = 0
    max_concurrency: int | None = None
    num_warmups: int = 1
    cancellations: Cancellations = NO_CANCELLATIONS
    metrics: Sequence[str] = DEFAULT_METRICS
    percentiles: Sequence[float] = (90.0, 95.0, 99.0)
    goals: Mapping[str, float] = field(default_factory=dict)
    id_prefix: str = "bench-"
    keep_text: bool = False
    think_time: float = 0.0
    """Seconds between an answer and the request that follows it."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A run against one model, and its figures."""

    model: str
    run: Run
    figures: Figures


async def bench(options: BenchOptions, prompts: Sequence[Prompt], watch: Watch) -> Benchmark:
    """Run a benchmark to its end, or until it is cancelled: then the result covers what ended.

    Raises UserError; KeyboardInterrupt when it is cancelled while warming up.
    """
    allow_open_files(min(len(prompts), options.max_concurrency or len(prompts)))
    async with connect(options.target, id_prefix=options.id_prefix, keep_text=options.keep_text) as client:
        model = options.model or await client.model()
        form = RequestForm(model, options.endpoint, options.fields)
        plan = schedule(prompts, form, options.arrivals, options.seed, options.cancellations)
        await _warm_up(client, form, options, prompts, watch)
        # Objects made by now stay to the end: a garbage collector that looked through them would delay sending.
        gc.collect()
        gc.freeze()
        try:
            with watch("requests", plan.count) as observer:
                run = await play(
                    plan.requests, plan.times, client.send, observer, options.max_concurrency, options.think_time
                )
        finally:
            gc.unfreeze()
    figures = measure(run.outcomes, run.duration, options.percentiles, options.metrics, options.goals)
    return Benchmark(model, run, figures)


async def _warm_up(
    client: Client, form: RequestForm, options: BenchOptions, prompts: Sequence[Prompt], watch: Watch
) -> None:
    """Send the first prompts, over and over if need be, and forget how long they took; one at least must succeed."""
    count = options.num_warmups
    requests = [
        form.fill(replace(prompt, follow_ups=()), index) for index, prompt in enumerate(islice(cycle(prompts), count))
    ]
    if not requests:
        return
    with watch("warm-up", count) as observer:
        run = await play(requests, [0.0] * count, client.send, observer, options.max_concurrency)
    if run.interrupted:
        raise KeyboardInterrupt
    failures = [outcome.failure for outcome in run.outcomes if outcome.failure is not None]
    if len(failures) == count:
        raise ServerError(f"every warm-up request failed, the first with: {failures[0].message}")


def allow_open_files(connections: int) -> None:
    """Let this process have so many connections open, as far as its hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
