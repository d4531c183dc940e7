"""Run in an environment with `guidellm`: prints as JSON how many of that program's requests do not succeed."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from wanted import AT_ONCE


def count_failures(url: str, tokenizer: str, concurrent: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        report, count = Path(folder) / "report.json", 2 * concurrent
        command = [Path(sys.executable).with_name("guidellm"), "run", "--disable-console"]
        command += ["--backend", f"kind=openai_http,target={url},model=fake"]
        command += ["--profile", f"kind=concurrent,streams={concurrent}"]
        command += ["--constraint", f"kind=max_requests,count={count}"]
        command += ["--tokenizer", f"kind=huggingface_auto,model={tokenizer}"]
        command += ["--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=8"]
        command += ["--output", f"kind=json,path={report}"]
        subprocess.run(command, check=True, stdout=sys.stderr)
        (benchmark,) = json.loads(report.read_text())["benchmarks"]
        return count - benchmark["metrics"]["request_totals"]["successful"]


url, _, asked = sys.argv[1:]
print(json.dumps({f"{one} at once": count_failures(url, json.loads(asked)["tokenizer"], one) for one in AT_ONCE}))
