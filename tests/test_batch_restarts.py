"""A batch on a real server that is killed again and again: each line is answered once, whatever was lost."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest
from openai import OpenAI

from tests.live_server import started

LINES = 30
KILLED_AT = (0, *range(3, 27, 3)) if "LENGTHWISE_TEST_FAULTS" in os.environ else (10,)
"""Lines that are answered at least when the server is killed."""


@contextmanager
def served(folder: Path, cache: Path, ends: int) -> Iterator[tuple[OpenAI, subprocess.Popen[str]]]:
    """A server over a cache of its own, and a client; the process may be killed meanwhile."""
    flags, environment = ("--files-size", "1", "--max-num-seqs", "4"), os.environ | {"LENGTHWISE_CACHE": str(cache)}
    with (
        started(folder, *flags, ends=ends, environment=environment) as (url, process),
        OpenAI(base_url=f"{url}/v1", api_key="none", timeout=60) as client,
    ):
        yield client, process


def completed(client: OpenAI, name: str) -> int:
    counts = client.batches.retrieve(name).request_counts
    return 0 if counts is None else counts.completed


@pytest.mark.slow
def test_a_batch_survives_kills_with_each_line_answered_once(tiny_folder: Path, tmp_path: Path) -> None:
    url: Literal["/v1/completions"] = "/v1/completions"
    names = [f"line {place}" for place in range(LINES)]
    body = {"prompt": [3, 4, 5], "max_tokens": 60, "ignore_eos": True, "temperature": 0}
    lines = (json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body}) for name in names)
    content = "\n".join(lines).encode()
    batch = ""
    for least in KILLED_AT:
        with served(tiny_folder, tmp_path, -signal.SIGKILL) as (client, process):
            if not batch:
                file = client.files.create(file=("in.jsonl", content), purpose="batch").id
                batch = client.batches.create(input_file_id=file, endpoint=url, completion_window="24h").id
            while completed(client, batch) < least:
                pass
            process.send_signal(signal.SIGKILL)
    with served(tiny_folder, tmp_path, 0) as (client, _):
        while (ended := client.batches.retrieve(batch)).status != "completed":
            assert ended.status in ("validating", "in_progress", "finalizing")
        assert ended.output_file_id is not None and ended.error_file_id is None
        told = [json.loads(line) for line in client.files.content(ended.output_file_id).text.splitlines()]
    assert sorted(line["custom_id"] for line in told) == sorted(names)
    assert len({line["response"]["body"]["choices"][0]["text"] for line in told}) == 1
