"""SSJF's proxy from `lengthwise train` to the process that predicts with it, on a tiny model and a tiny encoder."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from models.proxy.network import load, read_manifest
from models.proxy.task import ProxyTask
from scheduler.length.features import LengthQuery
from scheduler.length.forest import Manifest
from scheduler.length.prediction import Source
from server.cache_paths import proxy_path
from server.cli.commands import train as train_command
from server.lengths.process import PredictorProcess, ProxyWorker, Setup, load_embedder, make_proxy_worker
from server.worker_process import ProcessFailed
from tests.server.cli.commands.runner import run_command

pytestmark = pytest.mark.usefixtures("cache")

Train = Callable[..., int]


def rows_file(path: Path, rows: int = 60, length: int | None = None) -> Path:
    """Answers as long as their inputs, or all of one length."""
    lines = []
    for number in range(rows):
        words = 1 + number % 12
        line = {"instruction": "x y", "input": " ".join("abcdefghijkl"[:words]), "length": length or words}
        lines.append(json.dumps(line))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def train(tmp_path: Path, tiny_folder: Path, embedder: Path) -> Train:
    def run(*more: object, rows: int = 60, length: int | None = None) -> int:
        file = rows_file(tmp_path / "rows.jsonl", rows, length)
        flags = ("--tokenizer", tiny_folder, "--embedder", embedder / "bert", "--epochs", 1, *more)
        return run_command(train_command.add_parser, "train", "--predictor", "proxy", file, *flags)

    return run


def test_a_file_makes_a_proxy(train: Train, tiny_folder: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train() == 0
    out = capsys.readouterr().out
    path = proxy_path(cache, str(tiny_folder))
    about = read_manifest(path)
    assert (about.task, about.max_tokens, about.rows) == (ProxyTask.REGRESSION_L1, 32, 43)
    assert "43 rows to learn from, 5 watched, 12 held out" in out and str(path) in out
    assert all(word in out for word in ("accuracy", "f1", "mae", "tau", "within twice"))


def test_all_tasks_are_compared_as_json(train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine"
    assert train("--task", "ordinal-l1", "--compare-tasks", "--json", "--output", out) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kept"] == "ordinal-l1" and read_manifest(out).task is ProxyTask.ORDINAL_L1
    assert told["tasks"].keys() == set(ProxyTask)
    assert told["tasks"]["binary"]["accuracy"] is None and 0 <= told["tasks"]["ordinal-l1"]["accuracy"] <= 1
    assert told["rows"]["test"] == 12


UNTRAINABLE = [
    (10, None, "regression-l1", "only 10 rows to train from"),
    (60, 5, "classification", "--task classification: the lengths are too much alike"),
]


@pytest.mark.parametrize("case", UNTRAINABLE)
def test_what_cannot_be_trained_is_one_line(train: Train, case: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rows, length, task, said = case
    assert train("--task", task, rows=rows, length=length) == 1
    err = capsys.readouterr().err
    assert err.startswith("lengthwise: error: ") and said in err and err.count("\n") == 1


@pytest.fixture
def trained(train: Train, tmp_path: Path, embedder: Path) -> Setup:
    path = tmp_path / "proxy"
    assert train("--output", path) == 0
    return Setup(embedder, path, Manifest("tiny", 32), niceness=0)  # other tests may keep all cores busy


QUERIES = (LengthQuery("x y", "a b c", 3, 100), LengthQuery("", "a", 1, 100))


def test_a_worker_says_what_the_proxy_says_and_embeds_for_the_cache(trained: Setup) -> None:
    proxy, encoder = load(trained.forest), load_embedder(trained.folder, 32)
    worker = ProxyWorker(proxy, lambda: encoder)
    estimates = worker.estimate(QUERIES)
    expected = proxy.predict([query.conversation for query in QUERIES]).tolist()
    assert [one.distribution.mean for one in estimates if one.distribution is not None] == pytest.approx(expected)
    assert {one.source for one in estimates} == {Source.PROXY}
    assert worker.embed(("a b", "c")).shape == (2, 16)
    broken = ProxyWorker(proxy, lambda: (_ for _ in ()).throw(OSError("gone")))
    with pytest.raises(OSError, match="gone"):
        broken.embed(("a",))


async def test_a_process_predicts_by_proxy(trained: Setup) -> None:
    with closing(PredictorProcess(trained, make_proxy_worker, timeout=200)) as process:
        await process.start()
        assert [one.source for one in await process.estimate(QUERIES)] == [Source.PROXY] * 2
        assert (await process.embed(["a b", "c", "d"])).shape == (3, 16)


async def test_a_missing_proxy_is_told_with_the_remedy(tmp_path: Path, embedder: Path) -> None:
    setup, said = (Setup(embedder, tmp_path / "none", Manifest("tiny", 32)), "make one with `lengthwise train")
    with closing(PredictorProcess(setup, make_proxy_worker)) as process, pytest.raises(ProcessFailed, match=said):
        await process.start()
