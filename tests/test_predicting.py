"""A server that predicts lengths, started as a user would start it: its predictor may die, and never outlives it."""

import json
import os
import signal
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psutil
import pytest

from scheduler.journal.file import read
from tests.live_server import serve
from tests.models import tiny_embedder


def chat(url: str, n: int = 2) -> Any:
    """Some answers, so that there is something to wait for where there are fewer slots."""
    body = {"messages": [{"role": "user", "content": "a b c"}], "max_tokens": 6, "ignore_eos": True, "n": n}
    with urlopen(Request(f"{url}/v1/chat/completions", json.dumps(body).encode()), timeout=60) as response:
        return json.load(response)


def predictors(journal: Path) -> set[int]:
    """The processes that the server with this journal has started: one that predicts, and none that tries grammars."""
    (server,) = [one for one in psutil.Process().children() if str(journal) in one.cmdline()]
    return {one.pid for one in server.children() if any("spawn_main" in word for word in one.cmdline())}


def test_the_predictor_may_die_and_ends_too(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENGTHWISE_CACHE", str(tmp_path / "cache"))
    embedder, journal = tiny_embedder.build(tmp_path / "embedder"), tmp_path / "journal.sqlite3"
    flags = ["--strategy", "abp", "--embedder", str(embedder), "--embedder-max-tokens", "32"]
    flags += ["--no-structured-outputs"]  # else there is a process that tries grammars
    flags += ["--max-num-seqs", "1", "--journal", str(journal), "--prediction-timeout", "60"]
    with serve(tiny_folder, *flags) as url:
        assert chat(url)["metrics"]["predicted_tokens"] == 12
        (first,) = predictors(journal)
        os.kill(first, signal.SIGKILL)
        assert chat(url)["usage"]["completion_tokens"] == 12
        chat(url)
        (second,) = predictors(journal) - {first}
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)
    rows = [(one.strategy, one.source, one.generated, len(one.features) > 0) for one in read(journal)]
    # All answers were cut by `max_tokens`, so that nothing is known of how they end.
    assert rows == [("abp", "max_tokens", 6, features) for features in (True, False, True) for _ in range(2)]
