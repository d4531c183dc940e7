"""The flags of `lengthwise bench`: their meanings, which are refused, and what they need of the system."""

import argparse
import resource
from functools import partial

import pytest

from loadgen.commands import add_bench, run_bench
from loadgen.options import BenchFlags
from models.open_files import allow_open_files
from models.options import Subparsers
from tests.loadgen.workload.args import options

read = partial(options, BenchFlags)


def test_other_benchmarks_may_stand_below_and_the_server_is_the_default() -> None:
    parser = argparse.ArgumentParser()

    def add_other(below: Subparsers) -> None:
        other = below.add_parser("engine")
        other.add_argument("--rounds", type=int)
        other.set_defaults(run=len)

    add_bench(parser.add_subparsers(), others=[add_other])
    assert parser.parse_args(["bench", "--goodput", "ttft:5", "--port", "9"]).run is run_bench
    args = parser.parse_args(["bench", "engine", "--rounds", "3"])
    assert (args.run, args.rounds) == (len, 3)


def test_server_flags() -> None:
    one = read("--host", "h", "--port", "9", "--header", "a=b=c", "d=e", "--header", "f=g", "--api-key", "k")
    assert one.url == "http://h:9"
    assert one.headers({}) == {"Authorization": "Bearer k", "a": "b=c", "d": "e", "f": "g"}
    assert read("--base-url", "https://x/v1", "--port", "9").url == "https://x/v1"
    assert read().headers({"OPENAI_API_KEY": "s"}) == {"Authorization": "Bearer s"}
    assert read("--api-key", "k").headers({"OPENAI_API_KEY": "s"}) == {"Authorization": "Bearer k"}


def test_request_flags_become_fields_and_the_extra_body_wins() -> None:
    one = read("--ignore-eos", "--top-p", "0.5", "--top-k", "4", "--extra-body", '{"temperature": 1, "priority": -2}')
    assert one.fields() == {"temperature": 1, "top_p": 0.5, "top_k": 4, "ignore_eos": True, "priority": -2}
    assert read("--ignore-eos").fields() == {"temperature": 0.0, "ignore_eos": True}


def test_result_flags() -> None:
    one = read("--goodput", "ttft:500", "tpot:50", "--goodput", "e2el:5000")
    assert dict(one.goodput) == {"ttft": 0.5, "tpot": 0.05, "e2el": 5}
    assert read("--metric-percentiles", "25,99.9").metric_percentiles == (25, 99.9)


REFUSED = [
    ("--request-rate", "0", "is not a number above 0"),
    ("--request-rate", "nan", "above 0"),
    ("--request-rate", "fast", "is not a number above 0"),
    ("--burstiness", "-1", "above 0"),
    ("--cancel-rate", "1.5", "between 0 and 1"),
    ("--num-prompts", "0", "at least 1"),
    ("--num-prompts", "many", "is not a whole number of at least 1"),
    ("--header", "a", "KEY=VALUE"),
    ("--extra-body", "[1]", "not a JSON object"),
    ("--extra-body", "{", "not a JSON object"),
    ("--percentile-metrics", "ttft,latency", "'latency' is none of ttft"),
    ("--metric-percentiles", "0,50", "above 0 and at most 100"),
    ("--metric-percentiles", "p99", "above 0 and at most 100"),
    ("--goodput", "itl:5", "with a name of ttft"),
    ("--goodput", "ttft", "is not NAME:MILLISECONDS"),
    ("--goodput", "ttft:-1", "is not NAME:MILLISECONDS"),
]


@pytest.mark.parametrize(("flag", "value", "message"), REFUSED)
def test_values_that_are_refused(flag: str, value: str, message: str) -> None:
    with pytest.raises(argparse.ArgumentError, match=message):
        read(flag, value)


FOREVER = resource.RLIM_INFINITY


OPEN_FILES = [
    ((1024, 8192), 2000, (2000, 8192)),
    ((1024, FOREVER), 2000, (2000, FOREVER)),
    ((1024, 1500), 2000, (1500, 1500)),
    ((1024, 8192), 10, None),
    ((FOREVER, FOREVER), 10**6, None),
]


@pytest.mark.parametrize(("limits", "connections", "expected"), OPEN_FILES)
def test_the_limit_of_open_files_is_raised_as_far_as_needed_and_allowed(
    limits: tuple[int, int], connections: int, expected: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: set_to.append(both))
    assert allow_open_files(connections) == min(connections, limits[1] if limits[1] != FOREVER else connections)
    assert set_to == ([] if expected is None else [expected])
