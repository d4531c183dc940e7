"""The load of a validation is short, fits the engine, and is paced by what the machine can serve."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from loadgen.commands import add_simulate
from loadgen.experiments.validation.validate import FULL, PROBE, QUICK, Size, lengths, paced
from loadgen.simulate.flags import ValidateFlags
from models.options import read_options


def parse(*flags: str) -> ValidateFlags:
    parser = argparse.ArgumentParser()
    add_simulate(parser.add_subparsers(), Path, lambda asked: 0)
    args = parser.parse_args(["simulate", "--validate", "--dataset-name", "random", *flags])
    return read_options(args, ValidateFlags)


@pytest.mark.parametrize(("flags", "size"), [((), FULL), (("--quick",), QUICK)])
def test_without_a_rate_all_requests_are_there_to_probe(flags: tuple[str, ...], size: Size) -> None:
    made = lengths(parse(*flags), context_length=10_000)
    assert len(made) == PROBE and {one.arrival for one in made} == {0.0}
    assert max(one.input_length for one in made) == size.max_input


def test_a_small_context_clips_them() -> None:
    made = lengths(parse("--random-output-len", "900"), context_length=100)
    assert max(one.input_length + one.output_length for one in made) <= 100


def test_a_rate_is_kept_for_as_long_as_was_asked_for_but_not_longer() -> None:
    assert len(lengths(parse("--rate", "2", "--duration", "5"), 4096)) == 10
    assert len(lengths(parse("--rate", "2", "--quick"), 4096)) == 2 * QUICK.duration


def test_requests_come_at_the_rate() -> None:
    args = parse("--duration", "50", "--seed", "3")
    probe = lengths(args, 4096)
    made = paced(args, probe, 2.8)
    assert len(made) == round(2.8 * 50)
    assert made[-1].arrival == pytest.approx(50.0)
    assert [one.input_length for one in made[:5]] == [one.input_length for one in probe[:5]]
    assert paced(args, probe, 2.8) == made


def test_a_slow_machine_serves_a_few_all_the_same() -> None:
    args = parse("--quick")
    assert len(paced(args, lengths(args, 4096), 0.001)) == QUICK.least


@pytest.mark.parametrize(
    ("flags", "strategies"),
    [((), ("vs", "magnus", "scls", "baton-pd", "lengthwise")), (("--strategies", "so"), ("so",))],
)
def test_the_command_hands_over_to_the_validator(flags: tuple[str, ...], strategies: tuple[str, ...]) -> None:
    seen: list[ValidateFlags] = []

    def validator(asked: ValidateFlags) -> int:
        seen.append(asked)
        return 7

    parser = argparse.ArgumentParser()
    add_simulate(parser.add_subparsers(), Path, validator)
    args = parser.parse_args(["simulate", "--validate", "some-model", *flags])
    assert args.run(args) == 7
    assert (seen[0].validate, seen[0].strategies) == ("some-model", strategies)


def test_a_number_of_requests_makes_a_check_short() -> None:
    args = parse("--num-requests", "12")
    assert len(paced(args, lengths(args, 4096), 5.0)) == 12
