"""The flags of `lengthwise bench`, read together."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping

from loadgen.bench.flags import Arriving, BenchFlags
from loadgen.bench.run import BenchOptions
from loadgen.client.client import Target
from loadgen.load.arrivals import Arrivals, Ramp
from loadgen.load.schedule import Cancellations
from models.errors import UserError


def options(asked: BenchFlags, ignore_eos: bool = False, environ: Mapping[str, str] = os.environ) -> BenchOptions:
    """Read the flags together; `ignore_eos` asks for it also without the flag. Raises UserError."""
    if not asked.url.startswith(("http://", "https://")):
        raise UserError(f"--base-url {asked.url}: must begin with http:// or https://")
    return BenchOptions(
        target=Target(asked.url, asked.headers(environ), asked.timeout),
        model=asked.model,
        endpoint=asked.endpoint,
        fields=asked.fields(ignore_eos),
        arrivals=_arrivals(asked),
        seed=asked.seed,
        max_concurrency=asked.max_concurrency,
        num_warmups=asked.num_warmups,
        cancellations=Cancellations(asked.cancel_rate, asked.cancel_delay),
        metrics=tuple(dict.fromkeys(asked.percentile_metrics)),
        percentiles=asked.metric_percentiles,
        goals=dict(asked.goodput),
        id_prefix=asked.request_id_prefix or f"bench-{uuid.uuid4().hex[:8]}-",
        keep_text=asked.save_detailed or asked.turns > 1,
        think_time=asked.think_time,
    )


def _arrivals(one: Arriving) -> Arrivals | None:
    start, end = one.ramp_up_start_rps, one.ramp_up_end_rps
    if one.ramp_up_strategy is None:
        if (start, end) != (None, None):
            raise UserError("--ramp-up-start-rps and --ramp-up-end-rps need a --ramp-up-strategy")
        return None if one.request_rate is None else Arrivals(one.request_rate, one.burstiness)
    if start is None or end is None:
        raise UserError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps")
    if one.request_rate is not None:
        raise UserError("--ramp-up-strategy sets the rate: leave out --request-rate")
    return Arrivals(burstiness=one.burstiness, ramp=Ramp(one.ramp_up_strategy, start, end))
