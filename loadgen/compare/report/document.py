"""report.json: where a comparison ran, every flag, every figure of every round, and the verdicts."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict
from pathlib import Path
from shlex import join

from loadgen.compare.machine import HIDDEN, hide, hide_all
from loadgen.compare.record import Comparison, Contestant, Play, Point, Setting
from loadgen.compare.verdict import Verdict, judge_all, list_rows

SECRET_FLAGS = frozenset({"api_key", "header"})
NOT_FLAGS = frozenset({"run"})


def collect_flags(args: argparse.Namespace) -> dict[str, object]:
    """Every flag with its value, whether given or not; keys stay out."""
    return {
        name: HIDDEN if name in SECRET_FLAGS and value else _plain(hide_all(value))
        for name, value in sorted(vars(args).items())
        if name not in NOT_FLAGS
    }


def make_document(comparison: Comparison, setting: Setting) -> dict[str, object]:
    """The content of report.json."""
    plan = comparison.plan
    return {
        **asdict(setting),
        "seed": plan.seed,
        "rounds": plan.rounds,
        "rounds_finished": {one.name: comparison.rounds_finished(one) for one in plan.contestants},
        "num_warmups": plan.num_warmups,
        "interrupted": comparison.interrupted,
        "baseline": plan.baseline,
        "contestants": [_contestant_json(comparison, one) for one in plan.contestants],
        "troubles": [asdict(one) for one in comparison.troubles],
        "summary": _summary_json(comparison),
        "verdicts": [_verdict_json(one) for one in judge_all(comparison)],
        "plays": [_play_json(play) for play in comparison.plays],
    }


def _contestant_json(comparison: Comparison, one: Contestant) -> dict[str, object]:
    command = hide(join(comparison.plan.command(one))) if one.strategy else None
    url = None if one.url is None else hide(one.url)
    return {"name": one.name, "strategy": one.strategy, "url": url, "command": command}


def _summary_json(comparison: Comparison) -> list[dict[str, object]]:
    plan = comparison.plan
    rows = sorted(
        list_rows(comparison), key=lambda one: (plan.contestants.index(one.contestant), plan.points.index(one.point))
    )
    return [
        {
            "contestant": row.contestant.name,
            **_load_json(row.point),
            "quantity": row.quantity.key,
            "unit": row.quantity.unit,
            "median": row.spread.median,
            "lowest": row.spread.low,
            "highest": row.spread.high,
            "rounds": row.spread.values,
        }
        for row in rows
    ]


def _verdict_json(one: Verdict) -> dict[str, object]:
    named = {"contestant": one.contestant, "baseline": one.baseline, **_load_json(one.point)}
    return {**named, "quantity": one.quantity.key, "outcome": one.outcome, "text": one.text}


def _play_json(play: Play) -> dict[str, object]:
    return {
        "contestant": play.contestant,
        "round": play.round,
        **_load_json(play.point),
        **play.figures,
        "errors": play.errors,
        "jcts_s": play.latencies,
        "predicted_and_actual_tokens": play.predictions,
    }


def _load_json(point: Point) -> dict[str, object]:
    return {"request_rate": _plain(point.rate), "burstiness": _plain(point.burstiness)}


def _plain(value: object) -> object:
    """A value as JSON can hold it, which knows neither infinity nor paths."""
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value
