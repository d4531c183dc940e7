"""Run in an environment with `aiperf`: prints as JSON how many of that program's requests do not succeed."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from wanted import AT_ONCE


def count_failures(url: str, tokenizer: str, concurrent: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        count = 2 * concurrent
        command = [Path(sys.executable).with_name("aiperf"), "profile", "--ui", "none", "--streaming"]
        command += ["--model", "fake", "--url", url, "--endpoint-type", "chat", "--tokenizer", tokenizer]
        command += ["--concurrency", str(concurrent), "--request-count", str(count)]
        command += ["--isl", "16", "--osl", "8", "--workers-max", "1", "--artifact-dir", folder]
        # Offline it takes a folder for a name on the hub.
        environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
        subprocess.run(command, check=True, stdout=sys.stderr, env=environment)
        report = json.loads((Path(folder) / "profile_export_aiperf.json").read_text())
        return count - int(report["request_count"]["avg"])


url, _, asked = sys.argv[1:]
print(json.dumps({f"{one} at once": count_failures(url, json.loads(asked)["tokenizer"], one) for one in AT_ONCE}))
