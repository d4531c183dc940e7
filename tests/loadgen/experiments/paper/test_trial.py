"""From a simulation to the figures that papers ask for, how an experiment is carried out, verdicts on rows, and rows
where the golden files have no case: figures that are missing, and parts of a set of queries.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.messages import BatchPolicy, StepStats
from engine.sampling.params import SamplingParams
from engine.simulated.executor import DeviceUsage
from loadgen.experiments.paper.baton import TARGET_2, table_rows
from loadgen.experiments.paper.experiment import Experiment
from loadgen.experiments.paper.load import PaperLoad, chat_pool
from loadgen.experiments.paper.row import PERCENT, PUBLISHED, SECONDS, TIMES, PaperRuns, ReportRow
from loadgen.experiments.paper.scls import PAPER, main_rows, slice_rows
from loadgen.experiments.paper.ssjf import formulation_rows, sjf_rows
from loadgen.experiments.paper.trial import Figures, SliceCount, TrialPoint, make_trial, pool_trials
from loadgen.simulate.prediction import SimulatedPrediction
from loadgen.simulate.simulation import Served, Simulation, Watch
from models.errors import UserError
from scheduler.plan import Assignment, Plan
from scheduler.request import Request, Times
from server.cli.main import main
from tests.loadgen.experiments.paper.parts import line, point_at, stage_of, trial_of

ONE = Served(0.0, 0.0, 1.0, 4.0, 10, 20, 1, None)
TWO = Served(2.0, 2.0, 3.0, 12.0, 10, 30, 4, None)
WORKERS = (
    DeviceUsage(12.0, 1.0, 8.0, 16.0, StepStats(prompt=10, pad=6, generated=20, invalid=10)),
    DeviceUsage(8.0, 1.0, 2.0, 4.0, StepStats(prompt=10, pad=2, generated=30, invalid=0)),
)


def test_the_first_quarter_is_counted_as_in_the_authors_program() -> None:
    """The third of nine requests to be answered, at 5 s, has a quarter of the others before it: two in 5 s."""
    requests = tuple(replace(ONE, end=end) for end in (9.0, 3.0, 8.0, 2.0, 7.0, 5.0, 20.0, 6.0, 30.0))
    assert make_trial(Simulation(requests, WORKERS))["first_quarter"] == pytest.approx(2 / 5)


def test_a_failed_request_is_no_trial() -> None:
    with pytest.raises(UserError, match="1 of 2 requests failed"):
        make_trial(Simulation((ONE, replace(TWO, completed=False)), WORKERS))


def test_several_runs_have_the_mean_of_each_figure() -> None:
    one = make_trial(Simulation((ONE, TWO), WORKERS))
    both = pool_trials([one, {**one, "mean": one["mean"] + 2, "throughput": 0.0}])
    assert both["mean"] == one["mean"] + 1 and both["throughput"] == one["throughput"] / 2
    assert both["pad"] == one["pad"]


@pytest.mark.parametrize(("limit", "early"), [(5, [True]), (4, [False]), (None, [])])
def test_a_slice_is_early_when_all_its_rows_ended_before_its_limit(limit: int | None, early: list[bool]) -> None:
    request = Request(0, (1,), SamplingParams(9), Times(0.0), generated=2)
    assignment = Assignment(Plan((request,), BatchPolicy(closed=True, iterations=limit)), 0, 0.0)
    count = SliceCount()
    request.generated = 6
    count.on_finish(assignment, 1.0)
    assert count.early == early


def list_points(runs: PaperRuns) -> list[ReportRow]:
    told = " ".join(f"{line.strategy}@{line.point.label}" for line in runs.lines)
    return [ReportRow.claim("points", True, told, "here")]


def experiment(*, sweeping: bool = False) -> Experiment:
    points = [point_at("slow"), point_at("fast", 2.0)]
    return Experiment("title", "setting", ("throughput",), points, ("vs", "ccb"), list_points, sweeping=sweeping)


def told(made: Experiment) -> list[str]:
    return [f"{line.strategy}@{line.point.label}" for line in made.lines]


def until(count: int) -> Callable[[str, TrialPoint], Figures]:
    """A player that is interrupted once `count` runs are done."""
    left = iter(range(count))

    def play(name: str, point: TrialPoint) -> Figures:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return trial_of()

    return play


def test_an_interrupt_leaves_what_ran_and_rows_of_complete_points() -> None:
    made = experiment().carry_out(until(3))
    assert made.interrupted and told(made) == ["vs@slow", "ccb@slow", "vs@fast"]
    assert [row.measured for row in made.rows] == ["yes: vs@slow ccb@slow"]
    none = experiment().carry_out(until(0))
    assert none.interrupted and none.lines == [] and none.rows == []


@pytest.mark.parametrize(("runs", "count"), [(3, 0), (4, 1)])
def test_rows_about_a_whole_sweep_need_all_of_it(runs: int, count: int) -> None:
    assert len(experiment(sweeping=True).carry_out(until(runs)).rows) == count


def test_a_run_is_done_once() -> None:
    begun: list[str] = []

    def begin(title: str, total: int) -> Watch:
        begun.append(title)
        return lambda ended: None

    stage = stage_of(chat_pool(0, count=50), scale=0.125, rates=(8.0,))
    stage.begin = begin
    for _ in range(2):
        PAPER.experiments["main"](stage).carry_out(stage.play)
    assert begun == ["sls, 8/s: 4 requests", "scls, 8/s: 4 requests"]


def test_a_point_may_have_predictions_of_its_own() -> None:
    stage = stage_of()
    usual = point_at("usual", load=PaperLoad(float("inf"), 50))
    other = replace(usual, prediction=SimulatedPrediction(3.0))
    assert stage.play("srpt", usual) == stage.play("srpt", replace(usual, prediction=stage.prediction))
    assert stage.play("srpt", usual) != stage.play("srpt", other)
    assert stage.play("vs", usual) == stage.play("vs", other), "it asks for no lengths"


def find(rows: list[ReportRow], what: str) -> Any:
    [row] = [one for one in rows if what in one.what]
    return row


@pytest.mark.parametrize(("throughputs", "holds"), [((1, 3, 2), True), ((1, 2, 3), False), ((3, 2, 1), False)])
def test_slice_lengths_have_a_best_one_in_between(throughputs: tuple[float, ...], holds: bool) -> None:
    lines = [
        line("scls", f"slices of {length}", length, throughput=value)
        for length, value in zip((16, 64, 256), throughputs, strict=True)
    ]
    assert find(slice_rows(PaperRuns(lines)), "throughput").document["holds"] is holds


def test_a_mode_whose_baseline_answered_nothing_in_time_is_skipped() -> None:
    lines = [line("fcfs-dynamic", mean=80, answered_meanwhile=0.0), line("ssjf-dynamic", mean=60)]
    rows = sjf_rows(PaperRuns(lines), PUBLISHED["ssjf-rates"], "answered_meanwhile")
    jct, none = (find(rows, f"ssjf-dynamic: {figure}") for figure in ("mean JCT", "throughput"))
    assert jct.document["measured"] == pytest.approx({"20/s": 25.0})
    assert none.measured == "skipped: the other strategy has none of it" and none.published == "3.00×"
    modes = ("none", "dynamic", "continuous")
    idle = [
        line(f"{order}-{mode}", row[0], first_quarter=0.0)
        for row in PUBLISHED["ssjf-table-2"]
        for mode in modes
        for order in ("fcfs", "ssjf")
    ]
    assert "skipped" in formulation_rows(PaperRuns(idle), "first_quarter")[1].measured


def test_answers_of_one_token_make_no_batches_to_compare() -> None:
    """They ended in a division by zero: nothing decodes, so batches have no size and no token is invalid."""
    rows = main_rows(PaperRuns([line(name, batch_size=0.0, invalid=0.0) for name in ("sls", "scls")]), "hf")
    for what in ("batch size", "invalid tokens"):
        assert find(rows, what).measured.startswith("skipped: ")


def test_seconds_of_a_part_of_batons_queries_say_nothing() -> None:
    lines = [line("fcfs-dynamic", "8 rows", 8, duration=100.0), line("baton", "8 rows", 8, duration=25.0)]
    rows = table_rows(PaperRuns(lines), TARGET_2)
    assert [row.measured for row in rows] == ["100.0 s", "25.0 s", "4.00×"]
    assert [row.published for row in rows] == ["50.1 s", "31.1 s", "1.61×"]
    assert [row.what for row in table_rows(PaperRuns(lines), TARGET_2, whole=False)] == [rows[2].what]


def row_of(low: float, high: float, unit: str, *measured: float) -> ReportRow:
    return ReportRow.beside("a over b", {str(one): one for one in measured}, low, high, unit, "IV, Fig. 1")


VERDICTS = [
    (row_of(60, 70, PERCENT, 10, 55), "as published, within 10%"),  # 10 % of 70 below 60
    (row_of(60, 70, PERCENT, 10, 52), "less"),
    (row_of(60, 70, PERCENT, 78, 90), "more"),
    (row_of(60, 70, PERCENT, 20, 90), "less"),  # on both sides, and nowhere near
    (row_of(60, 70, PERCENT, -5, 0), "the opposite"),
    (row_of(1.7, 2.2, TIMES, 0.7, 1.0), "the opposite"),
    (row_of(1.7, 2.2, TIMES, 1.2), "less"),
    (row_of(242, 242, SECONDS, 241.7), "as published, within 10%"),
    (row_of(242, 242, SECONDS, 0.5), "less"),
    (ReportRow.claim("it rises", True, "1, 2", "IV"), "holds"),
    (ReportRow.claim("it rises", False, "2, 1", "IV"), "does not hold"),
    (ReportRow.skip("it", "there is no GPU"), ""),
    (ReportRow.find("it", {"it": 1.0}, SECONDS), ""),
]


@pytest.mark.parametrize(("row", "verdict"), VERDICTS)
def test_a_row_is_judged_by_the_published_range_and_a_tenth_of_it(row: ReportRow, verdict: str) -> None:
    assert row.verdict == verdict


def test_the_command_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "baton", "--experiments", "table-2"]) == 0
    assert "7 more, 5 less, 3 as published, within 10%; 15 rows" in capsys.readouterr().out
