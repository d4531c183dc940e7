"""A `lengthwise serve` process on a free loopback port, started as a user would start it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COMMAND = Path(sys.executable).with_name("lengthwise")


@contextmanager
def serve(folder: Path | str, *flags: str) -> Iterator[str]:
    """Yields the server's URL once its ready line is out; ends it with SIGTERM and checks that it ends well."""
    command = [str(COMMAND), "serve", str(folder), "--port", "0", "--log-level", "warning", *flags]
    if "--journal" not in flags:
        command.append("--no-journal")  # the default place is the user's
    if "--files-size" not in flags:
        command += ["--files-size", "0"]  # as is that of files
    if "--dtype" not in flags:
        command += ["--dtype", "float32"]  # answers do not depend on neighbours or on what this CPU is fast at
    if "--max-num-seqs" not in flags:
        command += ["--max-num-seqs", "32"]  # not what a busy machine is measured to gain by
    if "--strategy" not in flags:
        command += ["--strategy", "baton-pd"]  # nobody predicts, which would take a process and an embedder
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            yield ready_url(process.stdout)
        finally:
            process.terminate()
            # Reading to the end also keeps a chatty server from blocking on a full pipe.
            rest = process.stdout.read()
    assert process.returncode == 0, rest


def ready_url(lines: Iterator[str]) -> str:
    seen = []
    for line in lines:
        seen.append(line)
        if found := re.search(r"ready on (http://\S+)", line):
            return found[1]
    raise AssertionError(f"no ready line: {''.join(seen)}")
