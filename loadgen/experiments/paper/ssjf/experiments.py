"""The experiments of SSJF (section 4.2): JCT and throughput against rate, burstiness, batch size and round.

The text names neither numbers of requests nor most rates and variations; those of the simulator that the authors
publish are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from loadgen.experiments.paper.accuracy import sigma_for_accuracy
from loadgen.experiments.paper.gains import read_published, sjf_rows
from loadgen.experiments.paper.load import Load, outputs
from loadgen.experiments.paper.plan import Plan, Rows, Run
from loadgen.experiments.paper.row import skip
from loadgen.experiments.paper.ssjf.place import (
    ACCURACY,
    AUTHORS,
    CUTS,
    SIMULATED,
    Place,
    Point,
    Sweep,
    batch_limits,
    find_place,
)
from loadgen.experiments.paper.ssjf.rows import MODES, formulation_rows, size_rows
from loadgen.experiments.paper.stage import Stage
from loadgen.simulate.prediction import Prediction

ORDERS = ("fcfs", "ssjf", "sjf-oracle")
ROUND_ACCURACY: Mapping[str, float] = MappingProxyType({"round 1": 0.619, "round 2": 0.60})
"""The best and the worst of that accuracy by conversation round (4.3, Fig. 9)."""
RIGHT = f"{ACCURACY:.1%} (Table 2)"
"""Predictions that fall into the right class, where nothing else is said."""
SHOWN = ("mean", "tail", "answered_meanwhile", "first_quarter", "throughput", "batch_size")


def rates(stage: Stage, sweep: Sweep = SIMULATED) -> Plan:
    """Figures 4 and 6."""
    place = find_place(stage, sweep)
    points = [Point(place.named(rate), rate) for rate in place.sweep.rates]
    return _plan(stage, place, "rates, Figs. 4 and 6", points, MODES, _rows(place, "rates"))


def burstiness(stage: Stage, sweep: Sweep = SIMULATED) -> Plan:
    """Figures 5 and 7."""
    place = find_place(stage, sweep)
    burst, rows = place.sweep.burst, _rows(place, "burstiness")
    points = [Point(f"CV {one:g}", burst, one, sorted_gaps=place.sweep.sorted_gaps) for one in place.sweep.variations]
    return _plan(stage, place, f"burstiness at {place.named(burst)}, Figs. 5 and 7", points, MODES, rows)


def sizes(stage: Stage) -> Plan:
    """Figure 8."""
    place = find_place(stage, SIMULATED)
    rate = place.sweep.sizes_rate
    points = [Point(f"{size} rows", rate, size=size) for size in place.sweep.sizes]
    title = f"batch sizes at {place.named(rate)}, Fig. 8"
    return _plan(stage, place, title, points, MODES[1:], size_rows, sweeping=True)


def rounds(stage: Stage, sweep: Sweep = SIMULATED) -> Plan:
    """Figure 9, as far as the text tells how rounds differ: in how well their answers' lengths are predicted."""
    place, lengths = find_place(stage, sweep), outputs(stage.pool.lengths)
    rate = place.sweep.rounds_rate
    sigmas = {name: sigma_for_accuracy(lengths, CUTS, accuracy) for name, accuracy in ROUND_ACCURACY.items()}
    points = [
        Point(f"{name}, {ROUND_ACCURACY[name]:.1%} right", rate, prediction=Prediction(sigma))
        for name, sigma in sigmas.items()
    ]
    title, rows = f"conversation rounds at {place.named(rate)}, Fig. 9", _rows(place, "rounds")
    return _plan(stage, place, title, points, MODES, rows, right="the share that each round's name tells")


def formulations(stage: Stage, sweep: Sweep = SIMULATED) -> Plan:
    """Table 2, as far as the accuracies that it tells decide: ways to train the predictor."""
    place, lengths = find_place(stage, sweep), outputs(stage.pool.lengths)
    sigmas = {name: sigma_for_accuracy(lengths, CUTS, right) for name, right, *_ in read_published("ssjf", "table-2")}
    points = [Point(name, place.sweep.rounds_rate, prediction=Prediction(sigma)) for name, sigma in sigmas.items()]
    title = f"ways to train at {place.named(place.sweep.rounds_rate)}, Table 2"
    rows = partial(formulation_rows, throughput=place.sweep.throughput)
    return _plan(stage, place, title, points, MODES, rows, right="the share that the table tells")


def azure_times(stage: Stage, sweep: Sweep = SIMULATED) -> Plan:
    """Figures 4 and 6 with the arrival times of a trace; the paper drives its load by one of Azure's."""
    place = find_place(stage, sweep)
    points = [Point(place.named(rate), rate, own_times=True) for rate in place.sweep.rates]
    title = "rates with a trace's arrival times, section 4.1"
    if not any(one.arrival for one in stage.pool.lengths):
        others = [skip("all of it", "no request comes after the first: give --trace FILE")]
        return Plan(f"{place.sweep.title}: {title}", place.setting, (), (), lambda lines: (), others)
    return _plan(stage, place, title, points, MODES, _rows(place, "rates"))


def _rows(place: Place, table: str) -> Rows:
    return partial(sjf_rows, table=table, throughput=place.sweep.throughput)


def _plan(
    stage: Stage,
    place: Place,
    title: str,
    points: Sequence[Point],
    modes: Sequence[str],
    rows: Rows,
    sweeping: bool = False,
    right: str = RIGHT,
) -> Plan:
    names = [f"{order}-{mode}" for mode in modes for order in ORDERS]
    runs = [
        Run(
            name,
            point.name,
            place.machine(point.size),
            _load(stage, place, point),
            batch_limits(point.size, place.group_tokens),
            point.prediction,
            repeats=place.repeats,
        )
        for point in points
        for name in names
    ]
    setting = (
        f"{place.setting}; predictions fall into the right one of {len(CUTS) + 1} classes in {right}; "
        f"{place.sweep.counting}"
    )
    return Plan(f"{place.sweep.title}: {title}", setting, SHOWN, runs, rows, sweeping=sweeping)


def _load(stage: Stage, place: Place, point: Point) -> Load:
    rate, duration = point.rate * place.served, stage.setting.duration
    count = place.sweep.requests if duration is None else max(2, round(rate * duration))
    return Load(rate, count, point.variation**-2, stage.setting.seed, point.sorted_gaps, point.own_times)


EXPERIMENTS: Mapping[str, Callable[[Stage], Plan]] = MappingProxyType(
    {
        "rates": rates,
        "burstiness": burstiness,
        "sizes": sizes,
        "rounds": rounds,
        "rates-authors": partial(rates, sweep=AUTHORS),
        "burstiness-authors": partial(burstiness, sweep=AUTHORS),
        "rounds-authors": partial(rounds, sweep=AUTHORS),
        "formulations": formulations,
        "formulations-authors": partial(formulations, sweep=AUTHORS),
        "azure-times": azure_times,
        "azure-times-authors": partial(azure_times, sweep=AUTHORS),
    }
)
"""Experiments by name; those as the authors count, and those after them, are for the simulator only."""
