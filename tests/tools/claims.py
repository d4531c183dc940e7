"""Ten of the pages' commands, each with its claim and what it prints now.

`make evidence-sample SEED=1` draws them. A claim is a paragraph, list or table; its command is a code span or a line of
shell in it. A file that only a reader has, such as a trace, is left out of the command, which makes a short form of it.
Commands that name a model, an address, a GPU or another engine are not drawn.
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
from signal import SIGINT
from subprocess import STDOUT
from tempfile import TemporaryDirectory
from typing import NamedTuple

from models.errors import INTERRUPTED

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/*.md", "docs/research/*.md")
PROGRAM = r"lengthwise (?:simulate|paper|arena|compare|bench (?:engine|grid))|python (?:-P )?-m (?:loadgen|tests)"
COMMAND = re.compile(rf"(?:^|`)(?:\.venv/bin/)?((?:{PROGRAM})\b[^`#\n]*)(?=`|#|$)", re.MULTILINE)
FILES = re.compile(r" --(?:trace \S+|tasks \S+|answers \S+|beside [A-Z]+)")
READERS = re.compile(r"\b[A-Z]{2,}\b|\$|https?:|\.jsonl|_order\.py|\.\.\.|[\[\]<>*|]")
"""What stands for something that only a reader has, or for several commands."""


class Claim(NamedTuple):
    page: str
    text: str
    written: str
    command: str  # without FILES

    @property
    def heading(self) -> str:
        short = f"\n(a short form of `{self.written}`)" if self.command != self.written else ""
        return f"{'=' * 80}\n{self.page}\n\n{self.text}\n\n$ {self.command}{short}"


def read_claims() -> list[Claim]:
    """One a command; a claim that ends with a colon or a command goes on in the next block."""
    found = {}
    for page in (path for pages in PAGES for path in sorted(ROOT.glob(pages))):
        blocks = re.split(r"\n\s*\n|\n(?=- )", re.sub(r"\\\n\s*", "", page.read_text("utf-8")))
        for block, after in zip(blocks, [*blocks[1:], ""], strict=True):
            goes_on = block.rstrip().endswith((":", "```"))
            text = f"{block}\n\n{after}" if goes_on else block
            for written in map(str.strip, COMMAND.findall(block)):
                if not READERS.search(command := FILES.sub("", written)):
                    found[command] = Claim(str(page.relative_to(ROOT)), text.strip(), written, command)
    return list(found.values())


def run_claim(command: str, limit: float) -> str:
    """How a command ended that was interrupted after `limit` seconds; it prints as it runs."""
    program, *words = shlex.split(command)
    line = [sys.executable, *(words if program == "python" else ["-P", "-m", "lengthwise", *words])]
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    begin, end = time.monotonic(), "ended"
    with TemporaryDirectory() as folder:
        child = subprocess.Popen(line, cwd=folder, env=env, stderr=STDOUT)
        try:
            child.wait(limit)
        except subprocess.TimeoutExpired:
            end = "was not done"
            child.send_signal(SIGINT)
        finally:
            child.wait()  # Ctrl-C reaches it too
    if child.returncode and end == "ended":
        end = f"failed with exit code {child.returncode}"
    return f"{end} after {time.monotonic() - begin:.0f} s"


def run_all(drawn: list[Claim], limit: float) -> None:
    ends = []
    for number, claim in enumerate(drawn, 1):
        print(f"{claim.heading}\n({number} of {len(drawn)}, {limit:.0f} s at most)\n", flush=True)
        end = run_claim(claim.command, limit)
        print(f"\nIt {end}.", flush=True)
        ends.append(f"  {end}: {claim.command}")
    print("=" * 80, *ends, "Whether a claim holds is yours to judge: its figures stand above the output.", sep="\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each command")
    given = parser.parse_args()
    claims = read_claims()
    drawn = random.Random(given.seed).sample(claims, min(given.count, len(claims)))
    longest = len(drawn) * given.limit / 60
    print(f"{len(drawn)} of {len(claims)} commands, in at most {longest:.0f} minutes:", flush=True)
    print(*(f"  {one.page}: {one.command}" for one in drawn), sep="\n", flush=True)
    try:
        run_all(drawn, given.limit)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
