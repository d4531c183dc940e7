"""`lengthwise paper baton --real`: which benchmark its flags come to."""

from __future__ import annotations

import argparse
from fractions import Fraction
from pathlib import Path

import pytest

from loadgen.experiments.baton import command as baton_command
from loadgen.experiments.baton.options import SCALE, SHORT_SCALE, BatonBench
from loadgen.experiments.paper import command
from server.cli.main import run_command


@pytest.fixture
def benched(monkeypatch: pytest.MonkeyPatch) -> list[BatonBench]:
    """The benchmarks that were run; they come out as if something was wrong."""
    ran: list[BatonBench] = []

    def run(asked: BatonBench) -> int:
        ran.append(asked)
        return 1

    monkeypatch.setattr(baton_command, "run_options", run)
    return ran


def parse(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return parser.parse_args(["paper", "baton", "--real", *flags])


def run(*flags: str) -> int:
    args = parse(*flags)
    return run_command(args)


def test_it_is_the_benchmark_of_that_paper(benched: list[BatonBench]) -> None:
    assert run() == 1
    (ran,) = benched
    assert (ran.target, ran.rounds, ran.seed, ran.save_result) == (("1", "2"), 1, 0, None)
    assert (ran.scale, ran.short_scale) == (SCALE, SHORT_SCALE)


def test_flags_are_handed_on(benched: list[BatonBench], tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    flags = ("--model", "tiny", "--experiments", "table-2", "--length-scale", "0.125", "--rounds", "3", "--seed", "5")
    run(*flags, "--save-result", str(file))
    (ran,) = benched
    assert (ran.model, ran.target, ran.rounds, ran.seed, ran.save_result) == ("tiny", ("2",), 3, 5, file)
    assert (ran.scale, ran.short_scale) == (Fraction(1, 8), Fraction(1))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--executors", "2"), "--executors with baton: its tables have one"),
        (("--loads", "2"), "--loads with baton"),
        (("--duration", "2"), "--duration with baton"),
        (("--input-scale", "2"), "--input-scale with baton"),
        (("--trace", "x.csv"), "--trace with baton"),
        (("--scale", "0.5"), "--scale is for the simulator"),
        (("--experiments", "table-3"), "table-3 is none of table-1, table-2"),
    ],
)
def test_what_it_cannot_follow_is_refused(
    benched: list[BatonBench], flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*flags) == 1 and benched == []
    error = capsys.readouterr().err
    assert error.startswith("lengthwise: error: ") and message in error
