"""The commands of docs/tutorial-*.md, run as printed where they take seconds, in a clone's folder.

tests/test_readme.py runs the long ones, smaller, and those with curl.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted(ROOT.glob("docs/tutorial-*.md"))
COMMAND = re.compile(r"^(?:\w+=\S+ )*\w+ (?:[^'\n]|'[^']*')*$", re.MULTILINE)

LONG = {
    "lengthwise simulate --cost cpu-smollm2-135m --max-num-seqs 8 --sweep": "two minutes",
    "lengthwise paper": "a minute",
    "lengthwise arena": "four minutes",
    "lengthwise compare": "four minutes, with the default model",
    "lengthwise bench": "a server with the default model",
    "lengthwise whatif": "a journal of what was served",
}
"""Commands that are not run here, by how they begin, and what they want."""


def commands(tutorial: Path) -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", tutorial.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [command for block in blocks for command in COMMAND.findall(block)]


def is_long(command: str) -> bool:
    return any(command.startswith(begin) for begin in LONG)


SHORT = {path.stem: [one for one in commands(path) if not is_long(one) and "curl" not in one] for path in TUTORIALS}


def test_no_command_is_missed() -> None:
    found = [command for path in TUTORIALS for command in commands(path)]
    assert [begin for begin in LONG if not any(command.startswith(begin) for command in found)] == []
    assert {command.split()[0] for command in found} == {"lengthwise", "python", "curl"}
    lines = [line for path in TUTORIALS for block in re.findall(r"^```sh\n(.*?)^```", path.read_text(), re.S | re.M)
             for line in block.splitlines()]  # fmt: skip
    assert sum(len(command.splitlines()) for command in found) == len(lines)
    assert len(SHORT["tutorial-researcher"]) == 4


@pytest.mark.parametrize("tutorial", [name for name in SHORT if SHORT[name]])
def test_commands_run_as_printed_in_a_clone(tutorial: str, tmp_path: Path) -> None:
    """`python -m pytest test_my_order.py` failed in a clone, whose settings ask for plugins of pytest."""
    for name in ("engine", "loadgen", "models", "scheduler", "server", "lengthwise.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    programs = Path(sys.executable).parent
    env = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTEST_ADDOPTS": "-p no:asyncio -p no:timeout",  # what `pip install pytest` does not bring
        "LENGTHWISE_CACHE": str(tmp_path / "cache"),
    }
    for command in SHORT[tutorial]:
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
