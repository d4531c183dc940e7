"""The scheduler's part of the composition root: from flags, executors and a profile to a strategy that works."""

from __future__ import annotations

from collections.abc import Iterable

from engine.messages import ExecutorInfo
from scheduler.assembly import Parts, assemble
from scheduler.batching.batcher import Limits
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.learning import Submit
from scheduler.serving_time.refit import RefitData
from scheduler.strategy import STRATEGIES
from scheduler.waiting.aged import Aging
from scheduler.waiting.promised import Promise
from server.cli.config import ServeConfig


def parts_for(
    config: ServeConfig,
    executors: Iterable[ExecutorInfo],
    serving_time: Bilinear | None,
    submit: Submit,
    refit_data: RefitData | None = None,
) -> Parts:
    """The parts of the strategy that the flags name; raises StrategyError where something of it is missing here."""
    limits = _limits(config)
    for info in executors:
        limits = limits.within(info.capacity_tokens, info.context_length, info.max_rows)
    return assemble(STRATEGIES[config.strategy], limits, serving_time, submit, refit_data)


def _limits(config: ServeConfig) -> Limits:
    ahead = config.prefill_ahead if config.prefill_ahead is not None else max(1, config.max_num_seqs // 8)
    return Limits(
        group_tokens=config.max_num_batched_tokens,
        prefill_ahead=ahead,
        max_batch_size=config.max_batch_size,
        batch_wait_timeout=config.batch_wait_timeout,
        aging=Aging(config.aging_factor),
        promise=Promise(config.overtaking_factor, outlier_factor=config.outlier_factor),
        slice_length=config.slice_length,
        min_interval=config.min_interval,
        interval_factor=config.interval_factor,
        recompute=config.recompute,
    )
