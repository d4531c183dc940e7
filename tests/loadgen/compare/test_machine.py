"""The machine of a comparison, and what of its settings stays hidden."""

import json
from dataclasses import replace
from unittest.mock import ANY

import pytest

from loadgen.compare import machine
from loadgen.compare.machine import collect_settings, describe_machine, find_versions, hide, is_secret
from loadgen.compare.record import plan
from loadgen.compare.report import collect_flags, make_document, make_page
from loadgen.options import CompareFlags
from tests.loadgen.compare.results import SETTING
from tests.loadgen.workload.args import options


def test_the_machine_and_the_versions_are_named() -> None:
    assert all(describe_machine().values())
    found = find_versions()
    assert found["python"].startswith("3.") and found["lengthwise"][0].isdigit() and found["torch"][0].isdigit()


def test_only_settings_are_told_and_no_secrets() -> None:
    told = {"LENGTHWISE_DTYPE": "float32", "LENGTHWISE_MAX_NUM_BATCHED_TOKENS": "64", "OMP_NUM_THREADS": "2"}
    secrets = {"LENGTHWISE_API_KEY": "s3cret", "LENGTHWISE_OTLP_TRACES_ENDPOINT": "http://me:s3cret@traces:4318"}
    hidden = {"LENGTHWISE_API_KEY": "(hidden)", "LENGTHWISE_OTLP_TRACES_ENDPOINT": "http://(hidden)@traces:4318"}
    assert collect_settings({**told, **secrets, "HOME": "/home/me"}) == told | hidden


SECRET = "s3cret"
FLAGS = (
    *("--strategies", "vs,baton", "--serve-args=--otlp-traces-endpoint http://me:s3cret@traces:4318/v1"),
    *("--urls", "a=https://me:s3cret@gpu:8000/v1,b=http://b/v1?api_key=s3cret&v=1"),
    *("--extra-body", '{"api_key": "s3cret", "top_k": 5, "vendor": {"accessToken": "s3cret", "max_tokens": 7}}'),
    *("--header", "X-Team=s3cret", "--api-key", "s3cret"),
)


TEXTS = [
    ("--dtype float32 --api-key s3cret s3cret2 --recompute", "--dtype float32 --api-key (hidden) --recompute"),
    ("--api-key=s3cret --seed=3", "--api-key=(hidden) --seed=3"),
    ("--api-key-file keys.txt", "--api-key-file keys.txt"),
    ("no server answers at http://me:s3cret@gpu:8000/v1", "no server answers at http://(hidden)@gpu:8000/v1"),
    ("http://b/v1?key=s3cret&v=1#top", "http://b/v1?key=(hidden)&v=1#top"),
    ("mail me@home or see http://a/b@c", "mail me@home or see http://a/b@c"),
]


@pytest.mark.parametrize(("text", "shown"), TEXTS)
def test_texts_lose_keys_and_nothing_else(text: str, shown: str) -> None:
    assert hide(text) == shown


def test_names_tell_what_is_secret() -> None:
    names = ("api_key", "apiKey", "X-Api-Key", "hf_token", "LENGTHWISE_API_KEY", "password", "Authorization")
    assert all(map(is_secret, names))
    others = ("max_tokens", "stop_token_ids", "LENGTHWISE_API_KEY_FILE", "author", "tokenizer", "", "keys_per_row")
    assert not any(map(is_secret, others))


def test_no_key_lands_in_a_report() -> None:
    asked = options(CompareFlags, *FLAGS)
    flags, shown = collect_flags(asked), plan(asked)
    setting = replace(SETTING, flags=flags)
    written = json.dumps(make_document(shown, setting)) + make_page(shown, setting)
    assert SECRET not in written
    vendor = {"accessToken": "(hidden)", "max_tokens": 7}
    assert flags["extra_body"] == {"api_key": "(hidden)", "top_k": 5, "vendor": vendor}
    assert "gpu:8000" in written and "v=1" in written and "traces:4318" in written


def test_a_package_that_is_not_installed_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a checkout `lengthwise bench gpu` stopped at once, since it asked for its own version."""
    monkeypatch.setattr(machine, "PACKAGES", ("numpy", "lengthwise-nowhere"))
    assert find_versions() == {"python": ANY, "numpy": ANY, "lengthwise-nowhere": "not installed"}
