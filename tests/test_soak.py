"""Many requests, every tenth of them cancelled: the server's memory does not grow with what it has served."""

import json
import os
from pathlib import Path

import psutil
import pytest

from server.cli.main import main
from tests.live_server import serve

FIRST, REQUESTS = (500, 2000) if "LENGTHWISE_TEST_FAULTS" in os.environ else (400, 1000)
"""Requests until pools, caches and the arena's pages have their size, and those that add nothing to them."""

ATTEMPTS = 3
"""Loads of which one must add nothing; on a busy machine pools and caches may reach their size late."""

GROWTH = 8 * 2**10 * REQUESTS
"""Bytes that may come of allocators' habits and a larger forest: less than the requests' K and V, or rows' states."""


def load(url: str, requests: int, seed: int, folder: Path) -> dict[str, float]:
    result = folder / f"{seed}.json"
    words = ["bench", "--base-url", url, "--num-prompts", requests, "--seed", seed, "--max-concurrency", 48]
    words += ["--dataset-name", "random", "--random-input-len", 24, "--random-output-len", 16, "--ignore-eos"]
    words += ["--random-vocab-size", 300, "--random-range-ratio", 0.9, "--cancel-rate", 0.1, "--cancel-delay", 0.05]
    words += ["--save-result", "--result-filename", result]
    assert main([str(word) for word in words]) == 0
    figures: dict[str, float] = json.loads(result.read_text())
    return figures


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_stays_flat_over_many_requests_with_every_tenth_cancelled(tiny_folder: Path, tmp_path: Path) -> None:
    with serve(tiny_folder, "--kv-cache-memory", "0.01", "--max-num-seqs", "8") as url:
        (server,) = [child for child in psutil.Process().children() if "0.01" in child.cmdline()]
        load(url, FIRST, 0, tmp_path)
        grown: list[int] = []
        while not grown or (grown[-1] >= GROWTH and len(grown) < ATTEMPTS):
            before = server.memory_info().rss
            figures = load(url, REQUESTS, 1 + len(grown), tmp_path)
            grown.append(server.memory_info().rss - before)
            assert figures["cancelled"] > REQUESTS / 20 and figures["failed"] == 0
            assert figures["completed"] + figures["cancelled"] == REQUESTS
    assert grown[-1] < GROWTH, f"{[round(one / 2**20, 1) for one in grown]} MB"
