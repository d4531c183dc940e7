"""The commands of `loadgen/experiments`, which a checkout of the repository has and an installed wheel has not."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

from loadgen.simulate.flags import ValidateFlags
from models.flags import Subparsers
from server.process.openmp import tune_libraries

BENCHMARKS = ("engine", "quality", "grid")
COMMANDS = ("paper", "arena")


def add_benchmarks(subparsers: Subparsers) -> None:
    """Add the commands below `bench` that load a model into this process."""
    if not are_here():
        for name in BENCHMARKS:
            _add_absent(subparsers, name, f"bench {name}")
        return
    from loadgen.experiments import commands

    commands.add_benchmarks(subparsers)


def add_commands(subparsers: Subparsers) -> None:
    """Add `paper` and `arena`."""
    if not are_here():
        for name in COMMANDS:
            _add_absent(subparsers, name, name)
        return
    from loadgen.experiments import commands

    commands.add_commands(subparsers)


def validate(asked: ValidateFlags) -> int:
    """Run `simulate --validate`; returns the exit code."""
    if not are_here():
        return _refuse("simulate --validate")
    tune_libraries(os.environ)
    from loadgen.experiments.validation.validate import validate  # torch, which other commands can do without

    return validate(asked)


def are_here() -> bool:
    """Whether the package with the experiments can be imported."""
    return find_spec("loadgen.experiments") is not None


def _add_absent(subparsers: Subparsers, name: str, command: str) -> None:
    """Add a command that takes any words and flags, and says where it can be run."""
    parser = subparsers.add_parser(
        name, help="an experiment: needs a checkout of the repository", add_help=False, prefix_chars="\0"
    )
    parser.add_argument("words", nargs="*")
    parser.set_defaults(run=lambda args: _refuse(command))


def _refuse(command: str) -> int:
    print(
        f"lengthwise: error: lengthwise {command} needs a checkout of the repository: experiments are not part of the "
        "installed package. Clone the repository, run `make install` in it, and call .venv/bin/lengthwise there",
        file=sys.stderr,
    )
    return 1
