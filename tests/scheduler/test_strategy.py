"""The table of strategies names parts that exist, and others are found by file, package and entry point, and held to
its rules; as predictions change while requests wait, nobody is lost, doubled, or brought back."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from engine.messages import BatchPolicy, Entry
from models.errors import StrategyError
from models.network.quantization import Quantization
from scheduler.assembly import (
    BATCHERS,
    ORDERS,
    SERVING_TIMES,
    Estimates,
    assemble,
    find_strategies,
    find_strategy,
    make_queue,
)
from scheduler.batching.batcher import BatchLimits
from scheduler.batching.memory import MEMORIES
from scheduler.batching.preemption import PREEMPTIONS
from scheduler.options import Scheduling
from scheduler.placement import PLACEMENTS
from scheduler.serving_time.bilinear import Bilinear
from scheduler.strategy import STRATEGIES, Length, Strategy
from scheduler.waiting.trial import try_order
from tests.scheduler.fakes import filled, request, rows_of, worker

LIMITS = BatchLimits(group_tokens=100, prefill_ahead=2)
PROFILE = Bilinear(*(0.001 for _ in range(8)))
PARTS: dict[str, Mapping[Any, object]] = {
    "length": {str(one): one for one in Length},
    "order": ORDERS,
    "batching": BATCHERS,
    "placement": PLACEMENTS,
    "memory": MEMORIES,
    "serving_time": {None: None, **SERVING_TIMES},
    "preemption": PREEMPTIONS,
    "quantization": {None: None, **{str(one): one for one in Quantization}},
}
ELSEWHERE = {"length", "quantization"}
"""Put together by the server."""


def test_every_column_has_a_table() -> None:
    others = {"name", "refill", "slices", "returns", "calibrated", "shared"}
    assert PARTS.keys() | others == {column.name for column in fields(Strategy)}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_names_known_parts_and_is_found_by_its_name(name: str) -> None:
    strategy = STRATEGIES[name]
    assert strategy.name == name
    assert find_strategy(name) is strategy
    assert [column for column, table in PARTS.items() if getattr(strategy, column) not in table] == []


UNREAD = [
    *(("magnus", column, "nonsense", "'nonsense': is none of ") for column in sorted(PARTS.keys() - ELSEWHERE)),
    ("baton-pd", "slices", True, "batching='join' works only with False"),
    ("baton-pd", "refill", BatchPolicy(closed=True), "with batching='join' rows join running batches"),
    ("vs", "refill", BatchPolicy(), "rows join no running batch"),
    ("vs", "refill", BatchPolicy(closed=True, entry=Entry.SHAPE), "enter by no shape"),
    ("vs", "refill", BatchPolicy(closed=True, entry=Entry.EMBED_BLOCKING), "rows join no running batch"),
    ("scls", "slices", False, "batching='dp-adaptive' works only with True"),
    ("scls", "order", "out-of-turn", "compares keys, which its order has only within a queue"),
    ("scls", "order", "fair-sojourn", "compares keys, which its order has only within a queue"),
    ("srpt", "order", "hrrn", "compares keys, which its order has only within a queue"),
    ("magnus", "order", "sjf", "works only with fcfs"),
    ("vs", "serving_time", "nearest", "works only with None"),
    ("scls", "serving_time", "nearest", "works only with None, bilinear"),
    ("baton-pd", "memory", "slice", "works only with scale, fixed, whole, peak"),
    ("scls", "memory", "fixed", "works only with slice, deepspeed"),
    ("vs", "memory", "predicted", "works only with scale, fixed, whole, peak"),
    ("vs", "placement", "max-min", "which no serving_time makes"),
    ("vs", "preemption", "by-order", "works only with none"),
    ("ils", "preemption", "by-order", "works only with none"),
]


@pytest.mark.parametrize(("name", "column", "choice", "reason"), UNREAD)
def test_a_choice_that_no_part_would_read_is_refused(name: str, column: str, choice: object, reason: str) -> None:
    changes: dict[str, Any] = {column: choice}
    with pytest.raises(StrategyError, match=f"strategy {name}: {column}=.*{reason}"):
        assemble(replace(STRATEGIES[name], **changes), LIMITS, PROFILE)


def test_only_what_estimates_by_the_nearest_batches_learns_from_them() -> None:
    learners = [name for name in STRATEGIES if assemble(STRATEGIES[name], LIMITS, PROFILE).estimates.batches]
    assert learners == ["magnus"]


def test_published_systems_take_predictions_as_they_are_and_all_others_calibrate_them() -> None:
    published = {name for name, row in STRATEGIES.items() if row.length != "none" and not row.calibrated}
    assert published == {
        *("glp", "abp", "magnus", "ltr"),
        *(f"{name}-{mode}" for name in ("ssjf", "sjf-oracle") for mode in ("none", "dynamic", "continuous")),
    }


BOUNDED = BatchLimits(200, 0, options=Scheduling(max_batch_size=3)).within(2000, 500, 4)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_each_request_is_handed_out_once_whatever_becomes_known_of_it(strategy: str) -> None:
    requests = [request(row_id, 4 + row_id, arrival=float(row_id), predicted_length=10.0) for row_id in range(9)]
    batcher, taken = filled(assemble(STRATEGIES[strategy], BOUNDED, PROFILE).batcher, requests[:6]), list[int]()
    for now, more in ((10.0, requests[6:]), *((11.0 + turn, []) for turn in range(9))):
        taken += rows_of(batcher.take(worker(capacity=2000), now))
        waiting = set(filled(batcher, more).waiting)
        for place, one in enumerate(requests):
            one.predicted_length = 1.0 + 97 * place % 13
            batcher.revise(one, now)
        assert set(batcher.waiting) == waiting
    assert sorted(taken) == list(range(9))


ROW = """
from dataclasses import dataclass
from scheduler.strategy import Strategy
from scheduler.waiting.order import Order

class Latest(Order):
    def key(self, request, now):
        return (request.priority, -request.times.arrival, request.row_id)

LATEST = Strategy("latest", order=lambda limits, prices: Latest())
UNKNOWN = Strategy("unknown", memory="nonsense")
NO_ROW = 7
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "latest_first.py").write_text(ROW)
    return tmp_path / "latest_first.py"


def served_first(name: str) -> int:
    """The row that a strategy gives an executor with one free slot."""
    batcher = assemble(STRATEGIES[name], BatchLimits(group_tokens=100, prefill_ahead=0)).batcher
    filled(batcher, (request(number, arrival=float(number)) for number in range(3)))
    return rows_of(batcher.take(worker(rows=1), 3.0))[0]


def test_a_row_of_a_file_orders_by_an_order_of_its_own(file: Path) -> None:
    assert served_first(f"{file}:LATEST") == 2 and served_first("baton-pd") == 0
    assert find_strategy(f"{file}:LATEST").name == f"{file}:LATEST"
    assert STRATEGIES[f"{file}:LATEST"] == STRATEGIES[f"{file}:LATEST"], "its file is run once"


def test_a_row_of_a_package_is_found_and_an_installed_one_listed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = file.parent / "mine-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[lengthwise.strategies]\nlatest = latest_first:LATEST\n")
    monkeypatch.syspath_prepend(file.parent)
    assert "latest" in [*STRATEGIES] and len(STRATEGIES) == len([*STRATEGIES])
    assert served_first("latest") == served_first("latest_first:LATEST") == 2


LACKING = [
    ("FILE:UNKNOWN", "memory='nonsense': is none of "),
    ("FILE:NO_ROW", "is a int and no scheduler.strategy.Strategy"),
    ("FILE:ABSENT", "has no ABSENT"),
    ("/nowhere/mine.py:ROW", "/nowhere/mine.py:ROW: there is no file /nowhere/mine.py"),
    ("nowhere_at_all:ROW", "cannot be loaded: ModuleNotFoundError: No module named 'nowhere_at_all'"),
    ("lengthwize", r"lengthwize is none of the strategies; did you mean lengthwise\?$"),
    ("ssjf", r"did you mean ssjf-none, ssjf-dynamic, ssjf-continuous\?$"),
    ("nope", "nope is none of the strategies, which are vs, .* and FILE.py:ROW"),
]


@pytest.mark.parametrize(("name", "message"), LACKING)
def test_what_cannot_be_had_is_told(name: str, message: str, file: Path) -> None:
    with pytest.raises(StrategyError, match=f"^--strategies: .*{message}"):
        find_strategies([name.replace("FILE", str(file))])


def test_an_error_in_a_file_is_told_with_its_line(file: Path) -> None:
    file.write_text("\nhalf = 1 / 0\n")
    with pytest.raises(StrategyError, match=r"ZeroDivisionError: division by zero \(line 2\)$"):
        find_strategy(f"{file}:ROW")


def test_a_row_that_breaks_a_rule_of_the_table_is_refused(file: Path) -> None:
    file.write_text(ROW + 'BROKEN = Strategy("broken", slices=True)\n')
    with pytest.raises(StrategyError, match="BROKEN: slices=True: batching='join' works only with False"):
        find_strategy(f"{file}:BROKEN")


BAD = "lambda l, p: Bad()"
FAILING = [
    ("key = lambda self, request, now: (request.prompt_len,)", BAD, r"has no attribute 'prompt_len.*\(line \d+\)$"),
    ("key = lambda self, request, now: 1.0", BAD, "key returns float, not tuple"),
    ("key = lambda self, request, now: (float('nan'),)", BAD, "key returns NaN"),
    ("by_key = True", BAD, "abstract .*key"),
    ("key = lambda self, request, now: (0,)", "lambda l: Bad()", "takes 1 positional argument but 2 were given"),
    ("key, rank = Latest.key, lambda self, in_turn, keys, now: [*in_turn][1:]", BAD, "rank returns other requests"),
    ("key, ended = Latest.key, lambda self, request: request.gone", BAD, "attribute 'gone'"),
]


@pytest.mark.parametrize(("body", "factory", "message"), FAILING)
def test_an_order_that_would_fail_on_a_request_is_refused(body: str, factory: str, message: str, file: Path) -> None:
    """`serve` said that it was ready, and answered 500."""
    file.write_text(f"{ROW}\nclass Bad(Order):\n    {body}\n\nBAD = Strategy('bad', order={factory})\n")
    with pytest.raises(StrategyError, match=f"^strategy {file}:BAD: fails in a trial: .*{message}"):
        find_strategy(f"{file}:BAD")


@pytest.mark.parametrize("name", ORDERS)
def test_each_order_of_the_table_stands_the_trial(name: str) -> None:
    limits = BatchLimits(group_tokens=1, prefill_ahead=0)
    queue = make_queue(Strategy("own", order=ORDERS[name]), limits, Estimates())()
    try_order(queue)
    assert not queue
