"""`lengthwise bench` as a program: against a live server of ours, and against scripted ones."""

import json
import signal
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.loadgen import scripted as script
from tests.loadgen.scripted import HEAD, MODELS, RANDOM, WHOLE, Answer, chunk, plain, said, scripted

start, bench = partial(script.start, "bench"), partial(script.run, "bench")


def only_result(folder: Path) -> Any:
    (file,) = folder.glob("*.json")
    return json.loads(file.read_text())


def shown(out: str) -> dict[str, str]:
    """The lines of the table with a figure."""
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if "│" in line]
    return {name: value for name, value in cells if value}


async def test_our_own_server_from_end_to_end(live_url: str, tmp_path: Path) -> None:
    flags = ["--num-prompts", "6", "--request-rate", "50", "--random-vocab-size", "200", "--goodput", "e2el:60000"]
    flags += ["--random-output-len", "60"]  # six tokens of so small a model arrive all at once
    flags += ["--save-detailed", "--result-dir", str(tmp_path), "--metadata", "k=v"]
    code, out, err = await bench("--base-url", live_url, *RANDOM, *flags)
    assert code == 0, err
    saved = only_result(tmp_path)
    assert (saved["completed"], saved["failed"], saved["rejected"], saved["cancelled"]) == (6, 0, 0, 0)
    assert (saved["model_id"], saved["k"], saved["num_prompts"], saved["interrupted"]) == ("tiny", "v", 6, False)
    # The workload says how many tokens there are; ignore_eos comes with it.
    assert (saved["input_lens"], saved["output_lens"], saved["uncounted"]) == ([8] * 6, [60] * 6, 0)
    assert (saved["total_input_tokens"], saved["total_output_tokens"], saved["num_warmups"]) == (48, 360, 1)
    assert saved["request_goodput"] == saved["request_throughput"] == pytest.approx(6 / saved["duration"])
    assert 0 < saved["mean_ttft_ms"] <= saved["mean_e2el_ms"] <= saved["mean_jct_ms"]
    assert saved["p99_tpot_ms"] > 0 and 0 < saved["jain_fairness_index"] <= 1
    assert all(start >= due for start, due in zip(saved["start_times"], saved["scheduled_times"], strict=True))
    assert saved["client_cpu_percent"] > 0
    table = shown(out)
    assert (table["Successful requests:"], table["Total generated tokens:"]) == ("6", "360")
    assert table["Warm-up requests (not counted):"] == "1"
    assert table["P99 TTFT (ms):"] == f"{saved['p99_ttft_ms']:.2f}"


async def test_chats_against_our_own_server(live_url: str) -> None:
    flags = ["--dataset-name", "builtin", "--max-output-len", "4", "--max-input-len", "64", "--num-prompts", "3"]
    code, out, err = await bench("--base-url", live_url, *flags, "--max-concurrency", "1")
    assert code == 0, err
    assert shown(out)["Peak concurrent requests:"] == "1"


async def test_what_did_not_complete_is_counted_apart_and_told_and_the_file_is_like_vllms(tmp_path: Path) -> None:
    broken = Answer([HEAD, chunk(said("a"))], "close")
    full = plain("429 Too Many Requests", b'{"error":{"message":"full"}}', "Retry-After: 1")
    flags = ["--num-warmups", "0", "--num-prompts", "4", "--max-concurrency", "1", "--result-dir", str(tmp_path)]
    flags += ["--request-rate", "inf", "--metric-percentiles", "99,99.9"]
    async with scripted(MODELS, WHOLE, broken, full, WHOLE) as server:
        code, out, err = await bench("--base-url", server.url, *RANDOM, *flags)
    assert code == 0
    table = shown(out)
    counts = [table[f"{kind} requests:"] for kind in ("Successful", "Failed", "Rejected", "Cancelled")]
    assert (counts, table["Warm-up requests (not counted):"]) == (["2", "1", "1", "0"], "0")
    assert "1 x http: status 429: full" in err and "1 x closed: the server closed the connection" in err
    saved = only_result(tmp_path)
    keys = {
        *("date", "backend", "label", "model_id", "num_prompts", "request_rate", "burstiness", "max_concurrency"),
        *("duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput"),
        *("request_goodput", "output_throughput", "total_token_throughput", "max_output_tokens_per_s"),
        "max_concurrent_requests",
    }
    spreads = product(("mean", "median", "std", "p99", "p99.9"), ("ttft", "tpot", "itl", "e2el"))
    assert keys.union("_".join((*one, "ms")) for one in spreads) <= set(saved)
    assert (saved["request_rate"], saved["model_id"], saved["request_goodput"]) == ("inf", "org/m", None)
    assert "ttfts" not in saved
    assert [file.name for file in tmp_path.iterdir()] == [f"lengthwise-infqps-concurrency1-m-{saved['date']}.json"]


async def test_clients_that_leave_are_counted_apart() -> None:
    flags = ["--num-warmups", "0", "--num-prompts", "3", "--cancel-rate", "1", "--cancel-delay", "0.05"]
    async with scripted(MODELS, Answer([HEAD], "hang")) as server:
        code, out, _ = await bench("--base-url", server.url, *RANDOM, *flags)
    assert (code, shown(out)["Cancelled requests:"]) == (1, "3")


async def test_a_failing_warm_up_stops_before_the_run() -> None:
    async with scripted(plain("404 Not Found", b'{"error":{"message":"no such model"}}')) as server:
        code, out, err = await bench("--base-url", server.url, "--model", "x", *RANDOM)
        assert len(server.requests) == 1
    assert (code, out) == (1, "")
    assert "lengthwise: error: every warm-up request failed, the first with: status 404: no such model\n" in err


async def test_ctrl_c_leaves_a_result_of_what_ran(tmp_path: Path) -> None:
    flags = ["--num-warmups", "0", "--num-prompts", "3", "--max-concurrency", "1", "--result-dir", str(tmp_path)]
    async with scripted(MODELS, WHOLE, Answer([HEAD], "hang")) as server:
        process = await start("--base-url", server.url, *RANDOM, *flags)
        while len(server.requests) < 3:
            await server.heard.wait()
            server.heard.clear()
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
    assert process.returncode == 130, err
    saved = only_result(tmp_path)
    assert (saved["completed"], saved["interrupted"], saved["unfinished"], saved["num_prompts"]) == (1, True, 2, 3)
    assert shown(out.decode())["Successful requests:"] == "1"
    assert "interrupted: these are the 1 of 3 requests that had ended" in err.decode()
    assert "Traceback" not in err.decode()


async def test_agents_runs_go_on_a_pause_after_each_answer_with_all_before(live_url: str, tmp_path: Path) -> None:
    """A word is several tokens of the tiny network; the seed is one whose pauses are short, 0.4 s together."""
    sizes = ("--program-scale", "0.0002", "--max-input-len", "12", "--max-output-len", "3")
    flags = ["--dataset-name", "programs", "--num-prompts", "3", *sizes, "--seed", "9"]
    code, out, err = await bench("--base-url", live_url, *flags, "--save-detailed", "--result-dir", str(tmp_path))
    assert code == 0, err
    saved = only_result(tmp_path)
    assert saved["runs"] == 3 and saved["failed"] == 0 and max(saved["turns"]) > 1
    begun = [place for place, turn in enumerate(saved["turns"]) if turn == 1]
    for first, end in zip(begun, [*begun[1:], len(saved["turns"])], strict=True):
        assert saved["turns"][first:end] == [*range(1, end - first + 1)]
        assert saved["input_lens"][first:end] == sorted(saved["input_lens"][first:end])
        assert saved["start_times"][first:end] == sorted(saved["start_times"][first:end])
    ends = [start + took for start, took in zip(saved["start_times"], saved["latencies"], strict=True)]
    spans = [ends[end - 1] for end in (*begun[1:], len(ends))]
    assert saved["mean_run_ms"] == pytest.approx(1000 * sum(spans) / 3, rel=0.05)
    assert "Mean time of an agent's run (s):" in shown(out) and "Median TTFT of turn 2 (ms):" not in shown(out)
