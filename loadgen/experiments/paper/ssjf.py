"""The experiments of SSJF (section 4.2): JCT and throughput against rate, burstiness, batch size and round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from loadgen.experiments.paper import published
from loadgen.experiments.paper.accuracy import sigma_for_accuracy
from loadgen.experiments.paper.gains import of
from loadgen.experiments.paper.load import Load, outputs
from loadgen.experiments.paper.published import Sjf
from loadgen.experiments.paper.row import AnyRow, Claim, Row, chain, less
from loadgen.experiments.paper.stage import Experiment, Line, Stage, limits, missing
from loadgen.simulate.prediction import Prediction
from loadgen.simulate.presets import SSJF

MODES = ("none", "dynamic", "continuous")
ORDERS = ("fcfs", "ssjf", "sjf-oracle")
RATES = (1.0, 2.0, 5.0, 10.0)
BURST_RATE = 0.19
VARIATIONS = (1.0, 2.5, 4.0, 5.5)
"""Coefficients of variation of the gaps between arrivals."""
SIZES = (1, 2, 4, 8)
SIZE = 4
"""Rows of a batch (4.2)."""
ROUNDS_RATE = 5.0
"""Where the text names no rate at all."""
REQUESTS, RUNS = 50, 20
"""Of each point. These, the rates and the variations are those of the simulator that the authors publish: the text
names none."""
LONGEST = 512
"""Answers are shorter than this (4.3, note on data processing)."""
RIGHT = f"{published.SSJF_ACCURACY:.1%} (Table 2)"
"""Predictions that fall into the right class, where nothing else is said."""
ROUNDS_RIGHT = "the share that each round's name tells"
SHOWN = ("mean", "tail", "answered_meanwhile", "throughput", "batch_size")


def rates(stage: Stage) -> Experiment:
    """Figures 4 and 6."""
    points = {f"{rate:g}/s": (rate, 1.0, SIZE) for rate in stage.setting.rates or RATES}
    lines = _sweep(stage, MODES, points)
    return _experiment(stage, "rates, Figs. 4 and 6", lines, sjf_rows(lines, published.SSJF_RATES))


def burstiness(stage: Stage) -> Experiment:
    """Figures 5 and 7."""
    points = {f"CV {variation:g}": (BURST_RATE, variation**-2, SIZE) for variation in VARIATIONS}
    lines = _sweep(stage, MODES, points)
    title = f"burstiness at {BURST_RATE:g}/s, Figs. 5 and 7"
    return _experiment(stage, title, lines, sjf_rows(lines, published.SSJF_BURSTINESS))


def sizes(stage: Stage) -> Experiment:
    """Figure 8."""
    points = {f"{size} rows": (RATES[-1], 1.0, size) for size in SIZES}
    lines = _sweep(stage, ("dynamic", "continuous"), points)
    return _experiment(stage, f"batch sizes at {RATES[-1]:g}/s, Fig. 8", lines, size_rows(lines))


def rounds(stage: Stage) -> Experiment:
    """Figure 9, as far as the text tells how rounds differ: in how well their answers' lengths are predicted."""
    lines: list[Line] = []
    for name, prediction in round_predictions(stage).items():
        lines += _sweep(replace(stage, prediction=prediction), MODES, {name: (ROUNDS_RATE, 1.0, SIZE)})
    said = {f"ssjf-{mode}": published.SSJF_ROUNDS for mode in MODES}
    title = f"conversation rounds at {ROUNDS_RATE:g}/s, Fig. 9"
    return _experiment(stage, title, lines, sjf_rows(lines, said), ROUNDS_RIGHT)


def round_predictions(stage: Stage) -> Mapping[str, Prediction]:
    """How well the answers of each round are predicted, by the round and the share that is."""
    lengths, classes = outputs(stage.pool.lengths), published.SSJF_CLASSES
    return {
        f"{name}, {accuracy:.1%} right": Prediction(sigma_for_accuracy(lengths, classes, accuracy))
        for name, accuracy in published.SSJF_ROUND_ACCURACY.items()
    }


def sjf_rows(lines: Sequence[Line], said: Mapping[str, Sjf]) -> list[AnyRow]:
    """Short jobs first against FCFS in the same mode; the text's figures are means over the points."""
    rows: list[AnyRow] = []
    for name, gains in said.items():
        fcfs, ours = of(lines, f"fcfs-{name.rpartition('-')[2]}"), of(lines, name)
        if not fcfs or not ours:
            continue
        jct = {point: less(line.trial.mean, fcfs[point].trial.mean) for point, line in ours.items()}
        answered = {
            point: line.trial.answered_meanwhile / fcfs[point].trial.answered_meanwhile
            for point, line in ours.items()
            if fcfs[point].trial.answered_meanwhile > 0
        }
        rows.append(Row(f"{name}: mean JCT less by", jct, gains.jct))
        if answered:
            rows.append(Row(f"{name}: throughput", answered, gains.throughput))
    return rows


def size_rows(lines: Sequence[Line]) -> list[AnyRow]:
    """What the text says of batch sizes, in words."""
    where = "4.2, Fig. 8"
    rows: list[AnyRow] = []
    dynamic, continuous = of(lines, "ssjf-dynamic"), of(lines, "ssjf-continuous")
    if dynamic and continuous:
        jct = {point: less(line.trial.mean, dynamic[point].trial.mean) for point, line in continuous.items()}
        below = all(value >= 0 for value in jct.values())
        rows.append(Claim("continuous batching has less JCT than dynamic", below, f"{chain(jct)} % less", where))
    for mode in ("dynamic", "continuous"):
        fcfs, ours = of(lines, f"fcfs-{mode}"), of(lines, f"ssjf-{mode}")
        if fcfs and ours:
            gains = {point: less(line.trial.mean, fcfs[point].trial.mean) for point, line in ours.items()}
            values = list(gains.values())
            rows.append(
                Claim(
                    f"ssjf-{mode}: JCT gains shrink with the batch size",
                    values[-1] < values[0],
                    f"{chain(gains)} %",
                    where,
                )
            )
    return rows


def _sweep(stage: Stage, modes: Sequence[str], points: Mapping[str, tuple[float, float, int]]) -> list[Line]:
    """`points`: rate, burstiness and batch size of each."""
    names = [f"{order}-{mode}" for mode in modes for order in ORDERS]
    runs = max(1, round(RUNS * stage.setting.scale))
    lines = []
    for point, (rate, shape, size) in points.items():
        duration = stage.setting.duration
        load = Load(rate, REQUESTS if duration is None else max(2, round(rate * duration)), shape, stage.setting.seed)
        machine = replace(SSJF, max_num_seqs=size)
        for name in stage.known(names):
            lines.append(stage.run(name, machine, load, limits(max_batch_size=size, prefill_ahead=0), point, runs))
    return lines


def _experiment(
    stage: Stage,
    title: str,
    lines: Sequence[Line],
    rows: Sequence[AnyRow],
    right: str = RIGHT,
) -> Experiment:
    every = [f"{order}-{mode}" for order in ORDERS for mode in MODES]
    runs = max(1, round(RUNS * stage.setting.scale))
    last = "50 requests" if stage.setting.duration is None else f"{stage.setting.duration:g} s of arrivals"
    setting = (
        f"0.1 s a request and 0.02 s a token, 1 executor, at most {SIZE} rows unless said; means of {runs} runs of "
        f"{last}, as in the simulator that the authors publish; predictions fall into the right one of "
        f"{published.SSJF_CLASSES} classes in {right}; throughput, which the text does "
        "not define, counts requests answered before the last one comes"
    )
    return Experiment(f"SSJF: {title}", setting, SHOWN, lines, [*missing(stage, every), *rows])


EXPERIMENTS: Mapping[str, Callable[[Stage], Experiment]] = MappingProxyType(
    {"rates": rates, "burstiness": burstiness, "sizes": sizes, "rounds": rounds}
)
