"""The flags of `lengthwise compare`, read together."""

from __future__ import annotations

import argparse
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from math import inf

from loadgen.compare.flags import CompareFlags
from loadgen.compare.record import Contestant, Plan, Point
from loadgen.program import PROGRAM
from models.errors import UserError
from models.flags import read_options
from scheduler.assembly import find_strategies

OURS = ("--strategy", "--host", "--port", "--allow-replay", "--api-key")
"""Flags of `lengthwise serve` that the comparison sets."""
UNREACHABLE = ("--uds", "--ssl-certfile", "--ssl-keyfile")
"""Flags of `lengthwise serve` with which the comparison could not ask the server."""


def read_plan(args: argparse.Namespace, ignore_eos: bool = False, environ: Mapping[str, str] = os.environ) -> Plan:
    """The plan that the flags make; `ignore_eos` asks for it also without the flag. Raises UserError."""
    asked = read_options(args, CompareFlags)
    contestants = _contestants(asked.strategies, asked.urls)
    if asked.model is not None and not asked.strategies:
        raise UserError(f"{asked.model}: only --strategies start servers; to ask those of --urls for it, give --model")
    return Plan(
        contestants=contestants,
        points=_points(asked.request_rates, asked.burstinesses),
        rounds=asked.rounds,
        baseline=_baseline(asked.baseline, contestants),
        seed=asked.seed,
        serve_command=_serve_command(asked.model, asked.serve_args),
        model=asked.ask_model,
        fields=asked.fields(ignore_eos),
        headers=asked.headers(environ),
        timeout=asked.timeout,
        ready_timeout=asked.ready_check_timeout_sec,
        max_concurrency=asked.max_concurrency,
        num_warmups=asked.num_warmups,
    )


def _contestants(strategies: Sequence[str], urls: Sequence[tuple[str, str]]) -> tuple[Contestant, ...]:
    find_strategies(strategies)
    if len(strategies) + len(urls) < 2:
        raise UserError("there is nothing to compare: name two or more with --strategies A,B or --urls NAME=URL,...")
    names = [*_numbered(strategies), *(name for name, _ in urls)]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"--urls: the name {twice[0]} is taken: choose another")
    sources = chain(((name, None) for name in strategies), ((None, url) for _, url in urls))
    return tuple(
        Contestant(name, look, strategy, url)
        for look, (name, (strategy, url)) in enumerate(zip(names, sources, strict=True))
    )


def _numbered(strategies: Sequence[str]) -> list[str]:
    """Names under which a strategy may come more than once."""
    seen: Counter[str] = Counter()
    names = []
    for strategy in strategies:
        seen[strategy] += 1
        names.append(strategy if seen[strategy] == 1 else f"{strategy} ({seen[strategy]})")
    return names


def _points(rates: Sequence[float] | None, burstinesses: Sequence[float]) -> tuple[Point, ...]:
    if rates is None:
        if tuple(burstinesses) != (1.0,):
            raise UserError("--burstinesses needs --request-rates")
        return (Point(),)
    finite = sorted({rate for rate in rates if rate != inf})
    at_once = [Point(inf)] if inf in rates else []  # which knows no burstiness
    return (*(Point(rate, burstiness) for burstiness in sorted(set(burstinesses)) for rate in finite), *at_once)


def _baseline(name: str | None, contestants: Sequence[Contestant]) -> str:
    names = [contestant.name for contestant in contestants]
    if name is not None and name not in names:
        raise UserError(f"--baseline {name}: choose from {', '.join(names)}")
    return name or names[0]


def _serve_command(model: str | None, serve_args: str) -> tuple[str, ...]:
    try:
        further = shlex.split(serve_args)
    except ValueError as error:
        raise UserError(f"--serve-args {serve_args!r}: {error}") from None
    for word in further:
        flag = word.partition("=")[0]
        if flag in OURS:
            raise UserError(f"--serve-args: leave {flag} out, the comparison sets it")
        if flag in UNREACHABLE:
            raise UserError(
                f"--serve-args: leave {flag} out, the comparison asks servers by HTTP on the loopback interface"
            )
    command = [*PROGRAM, "serve", *([model] if model else [])]
    return (*command, "--host", "127.0.0.1", "--port", "0", "--allow-replay", *further)
