"""Flags as the command line has them."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from loadgen.client.request import LoadPrompt
from loadgen.workload.requests import Workload, load
from models.options import add_groups, read_options

Flags = TypeVar("Flags")


def options(kind: type[Flags], *flags: object) -> Flags:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_groups(parser, {"flags": kind})
    return read_options(parser.parse_args([str(flag) for flag in flags]), kind)


def parse(*flags: object) -> Workload:
    return options(Workload, *flags)


def prompts(*flags: object, num_prompts: int = 20, seed: int = 0) -> list[LoadPrompt]:
    return load(parse(*flags), num_prompts, seed)


def write(folder: Path, name: str, text: str | bytes) -> Path:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def write_trace(file: Path, rows: Iterable[str]) -> str:
    """In Azure's format; returns where."""
    file.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    return str(file)
