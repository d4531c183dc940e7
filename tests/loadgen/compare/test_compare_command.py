"""`lengthwise compare` as a program: servers that it starts, servers that it finds and asks, and Ctrl-C."""

import json
import os
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadgen.client.client import Target
from loadgen.compare.run import read_batch_rows
from scheduler.journal.file import read
from tests.live_server import serve_here
from tests.loadgen import scripted as script
from tests.loadgen.scripted import HEAD, MODELS, RANDOM, WHOLE, Answer, plain, scripted

NO_METRICS = plain("404 Not Found", b"")
start = partial(script.start, "compare", *RANDOM, "--random-vocab-size", "200")
compare = partial(script.run, "compare", *RANDOM, "--random-vocab-size", "200")


def report(folder: Path) -> Any:
    assert (folder / "report.html").read_text().startswith("<!DOCTYPE html>")
    return json.loads((folder / "report.json").read_text())


def servers_of(model: Path) -> list[psutil.Process]:
    """Processes that serve it."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        found += [process] if "serve" in words and str(model) in words else []
    return found


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_strategy_beside_a_server_that_is_found_from_end_to_end(tiny_folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "tiny"
    model.symlink_to(tiny_folder)
    folder = tmp_path / "report"
    flags = ["--num-prompts", "4", "--random-range-ratio", "0.5", "--num-warmups", "1"]
    config = tmp_path / "config.toml"
    config.write_text('api_key = ["a-key-of-the-configuration-file"]\n')
    environ = {"LENGTHWISE_API_KEY": "a-key-of-the-environment", "LENGTHWISE_CONFIG": str(config)}
    loads = ("--request-rates", "50,inf", "--output", str(folder))
    journal = tmp_path / "journal.sqlite3"
    served = ("--serve-args", f"--journal {journal}", "--api-key", "the-key-of-all-servers")
    with serve_here(tiny_folder, "--allow-replay") as url:
        contestants = ("--strategies", "vs", "--urls", f"found={url}", "--replay-lengths", *served)
        code, out, err = await compare(str(model), *contestants, *loads, *flags, environ=environ)
    assert code == 0, err
    assert len({one.scope for one in read(journal)}) == 1  # so each server learned from those before
    held = report(folder)
    assert [(one["round"], one["contestant"], one["request_rate"]) for one in held["plays"]] == [
        (number, name, rate)
        for number, names in enumerate((("vs", "found"), ("found", "vs"), ("vs", "found")), 1)
        for name in names
        for rate in (50.0, "inf")
    ]
    assert {(one["completed"], one["failed"], one["rejected"]) for one in held["plays"]} == {(4, 0, 0)}
    # Lengths are replayed: all contestants have the same in a round, and max_tokens does not tell them.
    lengths = {(one["round"], one["total_output_tokens"]) for one in held["plays"]}
    assert len(lengths) == 3 and len({tokens for _, tokens in lengths}) > 1
    assert held["troubles"] == []
    assert all(len(one["jcts_s"]) == 4 and one["mean_ttft_ms"] > 0 for one in held["plays"])
    assert {path.name for path in (folder / "logs").iterdir()} == {f"vs-round-{number}.log" for number in (1, 2, 3)}
    assert "a-key-of-the" not in (folder / "report.json").read_text() + (folder / "report.html").read_text()
    assert "found against vs, 50 requests/s, mean JCT: " in out
    assert held["num_warmups"] == 1 and "warmed up with 1 request before each of its turns" in out
    assert servers_of(model) == []


async def test_ctrl_c_leaves_no_server_behind(tiny_folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "tiny"
    model.symlink_to(tiny_folder)
    flags = ["--num-prompts", "2", "--request-rates", "0.001", "--num-warmups", "1", "--output", str(tmp_path / "out")]
    process = await start(str(model), "--strategies", "baton-pd,vs", *flags)
    assert process.stderr is not None
    async for line in process.stderr:
        if b"0.001 requests/s, 2 requests" in line:
            break
    assert len(servers_of(model)) == 1
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert (process.returncode, servers_of(model)) == (130, [])
    assert "interrupted" in err.decode() and "Traceback" not in err.decode()
    held = report(tmp_path / "out")
    assert held["interrupted"] and [one["interrupted"] for one in held["plays"]] == [True]
    assert held["flags"]["replay_lengths"] is True, "which is so where no contestant is a server that is found"


async def test_ctrl_c_leaves_a_report_of_what_ran(tmp_path: Path) -> None:
    flags = ["--num-prompts", "2", "--num-warmups", "0", "--output", str(tmp_path / "out")]
    turn = [NO_METRICS, MODELS, WHOLE, WHOLE, NO_METRICS]
    async with scripted(*turn) as good, scripted(NO_METRICS, MODELS, Answer([HEAD], "hang")) as slow:
        process = await start("--urls", f"good={good.url},slow={slow.url}", *flags)
        while len(slow.requests) < 3:
            await slow.heard.wait()
            slow.heard.clear()
        process.send_signal(signal.SIGTERM)  # does what Ctrl-C does
        out, err = await process.communicate()
    assert process.returncode == 130, err
    held = report(tmp_path / "out")
    plays = [(one["contestant"], one["completed"], one["interrupted"]) for one in held["plays"]]
    assert plays == [("good", 2, False), ("slow", 0, True)]
    assert held["interrupted"] and {one["outcome"] for one in held["verdicts"]} == set()


async def compare_with_gone(folder: Path, environ: Mapping[str, str] | None = None) -> str:
    """What is said of a server and an address where none listens."""
    flags = ["--num-prompts", "1", "--num-warmups", "0", "--output", str(folder)]
    async with scripted(*[NO_METRICS, MODELS, WHOLE, NO_METRICS] * 3) as good:
        code, _, err = await compare("--urls", f"gone=http://127.0.0.1:1,good={good.url}", *flags, environ=environ)
    assert code == 1
    return err


async def test_a_contestant_that_cannot_be_played_does_not_stop_the_others(tmp_path: Path) -> None:
    err = await compare_with_gone(tmp_path / "out")
    held = report(tmp_path / "out")
    assert [(one["contestant"], one["round"]) for one in held["plays"]] == [("good", 1), ("good", 2), ("good", 3)]
    assert [(one["contestant"], one["round"]) for one in held["troubles"]] == [("gone", 1)]
    assert "gone is left out from round 1 on: no server answers" in err
    assert "gone was left out from round 1 on" in (tmp_path / "out" / "report.html").read_text()


async def test_without_the_extra_there_is_no_page_and_the_start_says_so(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text('import sys\nsys.modules["vl_convert"] = None\n')
    environ = {"PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))}
    err = await compare_with_gone(tmp_path / "out", environ)
    assert err.startswith("no report.html, which needs pip install 'lengthwise[report]'")
    assert err.rstrip().endswith(f"saved {tmp_path / 'out' / 'report.json'}")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.json", "logs"}


METRICS = b"""\
# TYPE lengthwise:batch_rows histogram
lengthwise:batch_rows_bucket{executor="0",le="+Inf"} 2
lengthwise:batch_rows_sum{executor="0"} 10
lengthwise:batch_rows_count{executor="0"} 2
lengthwise:batch_rows_bucket{executor="1",le="+Inf"} 3
lengthwise:batch_rows_sum{executor="1"} 4
lengthwise:batch_rows_count{executor="1"} 3
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running 3
"""


async def test_a_server_is_asked_and_may_have_nothing_to_tell() -> None:
    async with scripted(plain("200 OK", METRICS)) as server:
        assert await read_batch_rows(Target(f"{server.url}/v1")) == (14.0, 5.0)
        assert server.requests[0][0].startswith(b"GET /metrics ")
    for answer in (plain("404 Not Found", b"none"), plain("200 OK", b"<html>{")):
        async with scripted(answer) as server:
            assert await read_batch_rows(Target(server.url)) == (0, 0)
    assert await read_batch_rows(Target("http://127.0.0.1:1")) == (0, 0)
