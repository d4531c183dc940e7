"""Flags as the command line has them."""

import argparse
from pathlib import Path

from loadgen.client.request import LoadPrompt
from loadgen.workload.requests import Workload, load
from models.options import add_groups, read_options


def parse(*flags: object) -> Workload:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_groups(parser, {"workload": Workload})
    args = parser.parse_args([str(flag) for flag in flags])
    return read_options(args, Workload)


def prompts(*flags: object, num_prompts: int = 20, seed: int = 0) -> list[LoadPrompt]:
    return load(parse(*flags), num_prompts, seed)


def write(folder: Path, name: str, text: str | bytes) -> Path:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file
