"""Ready means warm: what the first request needs is there before it comes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("cache")
def test_the_first_request_imports_no_module_and_starts_no_process(tiny_folder: Path, embedder: Path) -> None:
    program = [sys.executable, "-m", "tests.server.first_request", str(tiny_folder), str(embedder)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"status": 200, "new": []}
