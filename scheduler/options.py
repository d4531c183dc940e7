"""Scheduling options; their defaults stand here only."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from models.options import Count, Natural, NonNegative, Positive, Share, option


@dataclass(frozen=True, kw_only=True)
class Ordering:
    """Order: which request goes first."""

    aging_factor: NonNegative = option(10.0)
    """serve by arrival once the oldest request has waited N times its predicted time, or 100 s; 0: never (SSJF)"""
    out_of_turn: Annotated[float, Meta(ge=0, lt=1)] = option(0.35)
    """share of the work that may jump the queue, cheapest requests first; 0: none (lengthwise)"""
    boost_gamma: Positive = option(0.1)
    """how fast long waits get rarer, in 1/s: the greater, the less cheap requests are put forward (boost)"""


@dataclass(frozen=True, kw_only=True)
class Scheduling(Ordering):
    """Scheduling: how requests are put into batches; durations are seconds."""

    prefill_ahead: Natural | None = option(None)
    """prompts that may be prefilled before a slot is free; default: an eighth of --max-num-seqs"""
    max_batch_size: Annotated[int, Meta(ge=1, le=65536)] | None = option(None)
    """most sequences of a static batch; default: --max-num-seqs"""
    batch_wait_timeout: NonNegative = option(0.0)
    """seconds that the first request of a batch waits for the batch to fill up, for dynamic batching"""
    wma_threshold: Count = option(50_000)
    """wasted memory accesses, in tokens, below which a request joins a waiting batch (Φ of Magnus)"""
    slice_length: Count = option(128, "decode steps of a slice, for strategies that slice")
    min_interval: NonNegative | None = option(None)
    """least seconds between two arrangements of sliced batches (Γ of SCLS); default: a median slice"""
    interval_factor: Share = option(0.5)
    """part of the least loaded executor's work that may pass before batches are arranged again (λ of SCLS)"""
    batch_slowdown: NonNegative = option(0.03)
    """share by which lines of /v1/batches may slow other requests; 0: lines run only while nothing else does"""
    recompute: bool = option(False)
    """prefill again after each slice or preemption, instead of keeping the KV cache in host memory"""
