"""What the flags of `lengthwise bench` say together."""

from __future__ import annotations

import argparse
import os
import uuid
from collections.abc import Mapping

from loadgen.bench.flags import Arriving, Result, Server
from loadgen.bench.run import BenchOptions
from loadgen.client.client import Target
from loadgen.load.arrivals import Arrivals, Ramp
from loadgen.load.schedule import Cancellations
from loadgen.options import Load, Sampling
from models.errors import UserError
from models.flags import read_options


def options(
    args: argparse.Namespace, ignore_eos: bool = False, environ: Mapping[str, str] = os.environ
) -> BenchOptions:
    """What to do; `ignore_eos` asks for it also without the flag. Raises UserError."""
    server, load, result = read_options(args, Server), read_options(args, Load), read_options(args, Result)
    arriving = read_options(args, Arriving)
    if not server.url.startswith(("http://", "https://")):
        raise UserError(f"--base-url {server.url}: must begin with http:// or https://")
    return BenchOptions(
        target=Target(server.url, server.headers(environ), load.timeout),
        model=server.model,
        endpoint=server.endpoint,
        fields=read_options(args, Sampling).fields(ignore_eos),
        arrivals=_arrivals(arriving),
        seed=load.seed,
        max_concurrency=load.max_concurrency,
        num_warmups=load.num_warmups,
        cancellations=Cancellations(arriving.cancel_rate, arriving.cancel_delay),
        metrics=tuple(dict.fromkeys(result.percentile_metrics)),
        percentiles=result.metric_percentiles,
        goals=dict(result.goodput),
        id_prefix=result.request_id_prefix or f"bench-{uuid.uuid4().hex[:8]}-",
        keep_text=result.save_detailed,
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
