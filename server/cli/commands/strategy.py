"""`lengthwise strategy new NAME`: the two files of a strategy outside the tree."""

import keyword
import os
import re
import shlex
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from models.errors import UsageError, UserError
from models.options import Subparsers, add_command, describe, option

TEMPLATES = ("new_strategy.txt", "new_strategy_test.txt")  # beside this file


@dataclass(frozen=True, kw_only=True)
class New:
    """The strategy to begin."""

    name: str = option("", "its name, and that of its Python module", positional=True)
    output: Path = option(Path("."), "folder for its files", metavar="FOLDER")


def add_parser(subparsers: Subparsers) -> None:
    """Begin a strategy of your own.

    Strategies outside the tree are rows of the table, in any file or installed package.

    Example: lengthwise strategy new my_order
    """
    parser = subparsers.add_parser("strategy", **describe(add_parser))
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    add_command(actions, "new", New, _write_new)


def _write_new(new: New) -> None:
    """Write a file with a row and its order, and one with its tests."""
    name, row = new.name, new.name.upper()
    module, tests = new.output / f"{name}.py", new.output / f"test_{name}.py"
    if not name.isidentifier() or name != name.lower() or keyword.iskeyword(name):
        raise UsageError(f"{name!r} cannot name a Python module: use small letters, digits and _, such as my_order")
    if find_spec(name) is not None:
        raise UsageError(f"Python has a module {name} already: choose another name")
    if there := [path for path in (module, tests) if path.exists()]:
        raise UserError(f"{there[0]} is there: choose another name or --output")
    new.output.mkdir(parents=True, exist_ok=True)
    words = {"NAME": name, "CLASS": name.title().replace("_", ""), "ROW": row}
    for path, template in zip((module, tests), TEMPLATES, strict=True):
        text = Path(__file__).with_name(template).read_text("utf-8")
        path.write_text(re.sub(r"\b(NAME|CLASS|ROW)\b", lambda found: words[found[0]], text), "utf-8")
    python = shlex.quote(sys.executable)
    print(f"Wrote {module} and {tests}. Next:")
    # Without settings of the folder above, which may want plugins.
    print(f"  {python} -m pytest -c {os.devnull} --rootdir {new.output} {tests}")
    where = "--cost cpu-smollm2-135m --max-num-seqs 8 --rate 1"  # where orders differ
    print(f"  lengthwise simulate {where} --strategies {module}:{row},baton-pd,lengthwise")
    print(f"  lengthwise serve --strategy {module}:{row}")
