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
import time
from pathlib import Path
from subprocess import PIPE, STDOUT
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
PAGES = ("lengthwise", "strategies", "research/*")
PROGRAM = r"lengthwise (?:simulate|paper|arena|bench (?:engine|gpu|grid))|python (?:-P )?-m"
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


def run_claim(command: str, limit: float) -> tuple[str, str]:
    """Output of a command in this environment, and how it ended; within `limit` seconds."""
    program, *words = shlex.split(command)
    line = [sys.executable, *(words if program == "python" else ["-P", "-m", "lengthwise", *words])]
    begin = time.monotonic()
    with TemporaryDirectory() as folder:
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        child = subprocess.Popen(line, cwd=folder, env=env, stdout=PIPE, stderr=STDOUT, text=True, errors="replace")
        try:
            output, end = child.communicate(timeout=limit)[0], "ended"
        except subprocess.TimeoutExpired:
            child.terminate()
            output, end = child.communicate()[0], "was not done"
    if child.returncode and end == "ended":
        end = f"failed with exit code {child.returncode}"
    return output, f"{end} after {time.monotonic() - begin:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each command")
    given = parser.parse_args()
    claims = read_claims()
    drawn = random.Random(given.seed).sample(claims, min(given.count, len(claims)))
    longest = len(drawn) * given.limit / 60
    print(f"{len(drawn)} of {len(claims)} commands, in at most {longest:.0f} minutes:", flush=True)
    print(*(f"  {page}: {command}" for page, _, command in drawn), sep="\n", flush=True)
    ends = []
    for page, claim, command in drawn:
        print(f"{'=' * 80}\n{page}\n\n{claim}\n\n$ {command}", flush=True)
        output, end = run_claim(command, given.limit)
        print(f"{output}\nIt {end}.", flush=True)
        ends.append(f"  {end}: {command}")
    print("=" * 80, *ends, "Whether a claim holds is yours to judge: its figures stand above the output.", sep="\n")


if __name__ == "__main__":
    main()
