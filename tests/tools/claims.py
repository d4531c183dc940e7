"""Ten of the pages' claims that have a command beside them, each with what the command prints now.

`make evidence-sample SEED=1` draws them. A claim is a paragraph, list or table with figures; its command is a
code span or a line of shell in it. Commands that name a file, a model or an address of the reader's are left out.
"""

import argparse
import os
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
PAGES = ("lengthwise", "strategies", "research/*")
PROGRAM = r"lengthwise (?:simulate|paper|arena|bench (?:engine|gpu|grid|quality))|python (?:-P )?-m"
COMMAND = re.compile(rf"(?:^|`)((?:{PROGRAM})\b[^`#\n]*)(?=`|$)", re.MULTILINE)
READERS = re.compile(r"\b[A-Z]{2,}\b|\$|https?:|\.jsonl|\.csv|tasks/|\.\.\.|[\[\]<>*|]")
"""What stands for something that only a reader has, or for several commands."""


def read_claims() -> list[tuple[str, str, str]]:
    """Page, claim and command; a claim that ends with a colon goes on in the next block."""
    found = []
    for page in sorted(path for name in PAGES for path in (ROOT / "docs").glob(f"{name}.md")):
        blocks = re.split(r"\n\s*\n|\n(?=- )", page.read_text("utf-8").replace("\\\n", " "))
        for block, after in zip(blocks, [*blocks[1:], ""], strict=True):
            goes_on = block.rstrip().endswith((":", "```"))
            claim = f"{block}\n\n{after}" if goes_on else block
            commands = [one.strip() for one in COMMAND.findall(block) if not READERS.search(one)]
            has_figure = re.search(r"\d", COMMAND.sub("", claim)) is not None
            found += [(str(page.relative_to(ROOT)), claim.strip(), one) for one in commands if has_figure]
    return list({command: (page, claim, command) for page, claim, command in found}.values())


def run_claim(command: str, limit: float) -> str:
    """Output of a command in this environment, or that it ran past the limit (s)."""
    program, *words = shlex.split(command)
    line = [sys.executable, *(words if program == "python" else ["-P", "-m", "lengthwise", *words])]
    try:
        with TemporaryDirectory() as folder:
            env = os.environ | {"PYTHONPATH": str(ROOT)}
            done = subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return f"not ended after {limit:.0f} s"
    return done.stdout if done.returncode == 0 else f"exit code {done.returncode}\n{done.stdout}{done.stderr}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each command")
    given = parser.parse_args()
    claims = read_claims()
    for page, claim, command in random.Random(given.seed).sample(claims, min(given.count, len(claims))):
        print(f"{'=' * 80}\n{page}\n\n{claim}\n\n$ {command}", flush=True)
        print(run_claim(command, given.limit), flush=True)


if __name__ == "__main__":
    main()
