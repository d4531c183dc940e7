"""Flags as the command line has them."""

from __future__ import annotations

import argparse
from pathlib import Path

from loadgen.client.request import Prompt
from loadgen.workload.flags import Choice, Workload, choose
from loadgen.workload.requests import load
from models.options import add_groups, read_options


def parse(*flags: object, num_prompts: int = 20, seed: int = 0) -> Choice:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_groups(parser, {"workload": Workload})
    args = parser.parse_args([str(flag) for flag in flags])
    return choose(read_options(args, Workload), num_prompts, seed)


def prompts(*flags: object, num_prompts: int = 20, seed: int = 0) -> list[Prompt]:
    return load(parse(*flags, num_prompts=num_prompts, seed=seed))


def write(folder: Path, name: str, text: str | bytes) -> Path:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file
