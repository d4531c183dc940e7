"""The description of the machine, and what it leaves out."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from loadgen.compare.machine import collect_settings, describe_machine, find_versions, measure_theft


def test_the_machine_and_the_versions_are_named() -> None:
    assert all(describe_machine().values())
    found = find_versions()
    assert found["python"].startswith("3.") and found["lengthwise"][0].isdigit() and found["torch"][0].isdigit()


def test_what_the_host_took_is_a_share_of_all_processors_time(monkeypatch: pytest.MonkeyPatch) -> None:
    times, stolen = iter([100.0, 110.0]), iter([7.0, 9.0])
    monkeypatch.setattr("loadgen.compare.machine.time.monotonic", lambda: next(times))
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(steal=next(stolen)))
    monkeypatch.setattr("loadgen.compare.machine.os.cpu_count", lambda: 4)
    assert measure_theft()() == 2.0 / (10 * 4)


def test_where_the_system_does_not_say_what_the_host_took_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(user=1.0))
    assert measure_theft()() is None


def test_only_settings_are_told_and_no_secrets() -> None:
    environ = {
        "LENGTHWISE_DTYPE": "float32",
        "LENGTHWISE_API_KEY": "s3cret",
        "LENGTHWISE_MAX_NUM_BATCHED_TOKENS": "64",
        "LENGTHWISE_OTLP_TRACES_ENDPOINT": "http://me:s3cret@traces:4318",
        "HOME": "/home/me",
        "OMP_NUM_THREADS": "2",
    }
    assert collect_settings(environ) == {
        "LENGTHWISE_API_KEY": "(hidden)",
        "LENGTHWISE_DTYPE": "float32",
        "LENGTHWISE_MAX_NUM_BATCHED_TOKENS": "64",
        "LENGTHWISE_OTLP_TRACES_ENDPOINT": "http://(hidden)@traces:4318",
        "OMP_NUM_THREADS": "2",
    }
