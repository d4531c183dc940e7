"""The experiments of Magnus (section IV): the main comparison and the ablation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from loadgen.experiments.paper import published
from loadgen.experiments.paper.gains import gain_rows, of
from loadgen.experiments.paper.load import Load
from loadgen.experiments.paper.row import AnyRow, Claim, Row, Skipped, chain, less, more
from loadgen.experiments.paper.stage import MINUTES_10, Experiment, Line, Stage, limits, missing, scaled
from loadgen.simulate.presets import V100_CHATGLM_6B
from loadgen.simulate.simulation import Machine

BASELINES = ("vs", "ccb")
QUANTIZED = "vsq"
"""The baseline with weights of 4 bits, which no simulation can tell anything of."""
ABLATION = ("vs", "glp", "abp", "magnus")
SHARES = (1.5, 2.0, 4.0, 8.0)
"""The rates, as multiples of what `vs` serves: the text names none."""
SATURATING = 50
"""Times the fixed batch, over all executors: requests that show what `vs` serves."""
FIXED = 7
"""Rows of the batches of vs, ccb and glp (IV-A)."""
SHOWN = ("throughput", "mean", "tail", "valid_tokens", "total_tokens", "batch_size", "pad", "invalid")


def main(stage: Stage) -> Experiment:
    """Figures 10 and 11."""
    names = (*BASELINES, "magnus")
    lines = _sweep(stage, names)
    said = published.MAGNUS_OVER[QUANTIZED].throughput
    real = Skipped(f"magnus over {QUANTIZED}: throughput", "4-bit weights need a real engine: --real", said)
    return Experiment(
        "Magnus: Figs. 10 and 11", _setting(stage), SHOWN, lines, [*missing(stage, names), *main_rows(lines), real]
    )


def main_rows(lines: Sequence[Line]) -> list[AnyRow]:
    """What section IV-B says of magnus against its baselines."""
    best = of(lines, "magnus")
    if not best:
        return []
    rows = [row for name, gains in published.MAGNUS_OVER.items() for row in gain_rows(lines, "magnus", name, gains)]
    rows += gain_rows(lines, "magnus", "vs", published.MAGNUS_OVER_ALL)
    for name in (*BASELINES, QUANTIZED):
        pairs = {point: (best[point].trial, line.trial) for point, line in of(lines, name).items()}
        if pairs:
            valid = {point: more(one.valid_tokens, other.valid_tokens) for point, (one, other) in pairs.items()}
            total = {point: more(one.total_tokens, other.total_tokens) for point, (one, other) in pairs.items()}
            rows += [
                Row(f"magnus over {name}: valid tokens a second", valid, published.MAGNUS_VALID_TOKENS),
                Row(f"magnus over {name}: all tokens a second", total, published.MAGNUS_TOTAL_TOKENS),
            ]
    return [*rows, *_growth(best)]


def _growth(best: Mapping[str, Line]) -> list[AnyRow]:
    throughput = {point: line.trial.throughput for point, line in best.items()}
    values = list(throughput.values())
    grows = all(one <= other for one, other in zip(values, values[1:], strict=False))
    return [Claim("magnus's throughput rises with the rate", grows, chain(throughput, 2), "IV-B, Fig. 11a")]


def ablation(stage: Stage) -> Experiment:
    """Figures 12 and 13."""
    lines = _sweep(stage, ABLATION)
    return Experiment(
        "Magnus: ablation, Figs. 12 and 13",
        _setting(stage),
        SHOWN,
        lines,
        [*missing(stage, ABLATION), *ablation_rows(lines)],
    )


def ablation_rows(lines: Sequence[Line]) -> list[AnyRow]:
    """What section IV-C says of each step."""
    rows: list[AnyRow] = []
    vs, glp, abp, magnus = (of(lines, name) for name in ABLATION)
    if vs and glp:
        valid = {point: more(line.trial.valid_tokens, vs[point].trial.valid_tokens) for point, line in glp.items()}
        total = {point: more(line.trial.total_tokens, vs[point].trial.total_tokens) for point, line in glp.items()}
        same = all(abs(value) < 10 for value in total.values())
        rows += [
            Row("glp over vs: valid tokens a second", valid, published.GLP_VALID_TOKENS),
            Claim("glp has almost the total tokens of vs (10 %)", same, f"{chain(total)} % more", "IV-C, Fig. 12"),
        ]
    if glp and abp:
        total = {point: more(line.trial.total_tokens, glp[point].trial.total_tokens) for point, line in abp.items()}
        rows.append(Row("abp over glp: all tokens a second", total, published.ABP_TOTAL_TOKENS))
        rows += gain_rows(lines, "abp", "glp", published.ABP_OVER_GLP)
    if abp and magnus:
        rows += _hrrn(abp, magnus)
    return rows


def _hrrn(abp: Mapping[str, Line], magnus: Mapping[str, Line]) -> list[AnyRow]:
    mean = {point: less(line.trial.mean, abp[point].trial.mean) for point, line in magnus.items()}
    tail = {point: less(line.trial.tail, abp[point].trial.tail) for point, line in magnus.items()}
    change = {point: more(line.trial.throughput, abp[point].trial.throughput) for point, line in magnus.items()}
    same = all(abs(value) < 5 for value in change.values())
    return [
        Row("magnus over abp: mean response time less by", mean, published.HRRN_MEAN),
        Row("magnus over abp: 95 % response time less by", tail, published.HRRN_TAIL),
        Claim("magnus has the throughput of abp (5 %)", same, f"{chain(change)} % more", "IV-C, Fig. 13a"),
    ]


def _sweep(stage: Stage, names: Sequence[str]) -> list[Line]:
    machine = scaled(V100_CHATGLM_6B, stage.setting.scale)
    duration = stage.setting.duration or MINUTES_10
    loads = {
        f"{rate:.3g}/s": Load(rate * machine.workers / V100_CHATGLM_6B.workers, 1, seed=stage.setting.seed)
        for rate in _rates(stage, machine)
    }
    return [
        stage.run(name, machine, _lasting(load, duration), limits(), point)
        for point, load in loads.items()
        for name in stage.known(names)
    ]


def _lasting(load: Load, duration: float) -> Load:
    return Load(load.rate, max(1, round(load.rate * duration)), load.burstiness, load.seed)


def _rates(stage: Stage, machine: Machine) -> Sequence[float]:
    """For the paper's whole machine."""
    if stage.setting.rates is not None:
        return stage.setting.rates
    if not stage.has("vs"):
        return ()
    count = SATURATING * FIXED * machine.workers
    served = stage.capacity("vs", machine, limits(), count)
    return [share * served * V100_CHATGLM_6B.workers / machine.workers for share in SHARES]


def _setting(stage: Stage) -> str:
    machine = scaled(V100_CHATGLM_6B, stage.setting.scale)
    rates = "as given" if stage.setting.rates else f"{', '.join(f'{share:g}' for share in SHARES)} × what vs serves"
    return (
        f"{machine.workers} × ChatGLM-6B on a V100 32 GB, {stage.setting.duration or MINUTES_10:g} s of Poisson "
        f"arrivals; rates, which the text does not name, are {rates}, for {V100_CHATGLM_6B.workers} workers; "
        f"predictions are off by {published.MAGNUS_RMSE} tokens (RMSE), as those for ChatGLM-6B in Table II"
    )


EXPERIMENTS: Mapping[str, Callable[[Stage], Experiment]] = MappingProxyType({"main": main, "ablation": ablation})
