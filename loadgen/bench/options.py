"""What the flags of `lengthwise bench` say together."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from loadgen.bench.run import BenchOptions
from loadgen.client.client import Target
from loadgen.load.arrivals import Arrivals, Ramp
from loadgen.load.schedule import Cancellations
from models.errors import UserError

SAMPLING = ("temperature", "top_p", "top_k", "min_p")


def options(
    args: argparse.Namespace, ignore_eos: bool = False, environ: Mapping[str, str] = os.environ
) -> BenchOptions:
    """What to do; `ignore_eos` asks for it also without the flag. Raises UserError."""
    url = args.base_url or f"http://{args.host}:{args.port}"
    if not url.startswith(("http://", "https://")):
        raise UserError(f"--base-url {url}: must begin with http:// or https://")
    sampling = {name: getattr(args, name) for name in SAMPLING}
    fields = {name: value for name, value in sampling.items() if value is not None}
    if args.ignore_eos or ignore_eos:
        fields["ignore_eos"] = True
    return BenchOptions(
        target=Target(url, _headers(args, environ), args.timeout),
        model=args.model,
        endpoint=args.endpoint,
        fields=fields | args.extra_body,
        arrivals=_arrivals(args),
        seed=args.seed,
        max_concurrency=args.max_concurrency,
        num_warmups=args.num_warmups,
        cancellations=Cancellations(args.cancel_rate, args.cancel_delay),
        metrics=args.percentile_metrics,
        percentiles=args.metric_percentiles,
        goals=dict(args.goodput),
        id_prefix=args.request_id_prefix,
        keep_text=args.save_detailed,
    )


def _headers(args: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    key = args.api_key or environ.get("OPENAI_API_KEY")
    return ({"Authorization": f"Bearer {key}"} if key else {}) | dict(args.header)


def _arrivals(args: argparse.Namespace) -> Arrivals | None:
    ends = (args.ramp_up_start_rps, args.ramp_up_end_rps)
    if args.ramp_up_strategy is None:
        if ends != (None, None):
            raise UserError("--ramp-up-start-rps and --ramp-up-end-rps need a --ramp-up-strategy")
        return None if args.request_rate is None else Arrivals(args.request_rate, args.burstiness)
    if None in ends:
        raise UserError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps")
    if args.request_rate is not None:
        raise UserError("--ramp-up-strategy sets the rate: leave out --request-rate")
    return Arrivals(burstiness=args.burstiness, ramp=Ramp(args.ramp_up_strategy, *ends))
