"""Strategies from outside the tree: found by file, package and entry point, and held to the rules of the table."""

from pathlib import Path

import pytest

from models.errors import StrategyError
from scheduler.assembly import ORDERS, Estimates, assemble, find_strategies, find_strategy, make_queue
from scheduler.batching.batcher import BatchLimits
from scheduler.strategy import STRATEGIES, Strategy
from scheduler.waiting.trial import try_order
from tests.scheduler.fakes import filled, request, rows_of, worker

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
