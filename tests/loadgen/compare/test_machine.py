"""What is told of the machine, and what is not."""

from __future__ import annotations

from loadgen.compare.machine import machine, settings_of, versions


def test_the_machine_and_the_versions_are_named() -> None:
    assert all(machine().values())
    found = versions()
    assert found["python"].startswith("3.") and found["lengthwise"][0].isdigit() and found["torch"][0].isdigit()


def test_only_settings_are_told_and_no_secrets() -> None:
    environ = {
        "LENGTHWISE_DTYPE": "float32",
        "LENGTHWISE_API_KEY": "s3cret",
        "HOME": "/home/me",
        "OMP_NUM_THREADS": "2",
    }
    assert settings_of(environ) == {
        "LENGTHWISE_API_KEY": "(hidden)",
        "LENGTHWISE_DTYPE": "float32",
        "OMP_NUM_THREADS": "2",
    }
