"""All settings of `lengthwise serve` as a table for docs/flags.md: `make docs` writes it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from models.options import Option, options_of
from server.cli.config import ServeConfig

HEAD = """# Every flag of `lengthwise serve`

Each is also an environment variable (`--max-num-seqs` is `LENGTHWISE_MAX_NUM_SEQS`) and a key of the TOML file that
`--config` names (`max_num_seqs`). The command line wins over the environment, the environment over the file. Flags are
named as vLLM's where they mean the same. `make docs` writes this page from the program.

| flag | default | values | meaning |
|---|---|---|---|
"""


def document() -> str:
    """The text of docs/flags.md."""
    return HEAD + "".join(_lines())


def _lines() -> Iterator[str]:
    for setting in options_of(ServeConfig):
        name = setting.name.upper() if setting.positional else setting.flag
        help_text = setting.help.replace("|", "\\|")
        yield f"| `{name}` | {_default(setting)} | {_values(setting)} | {help_text} |\n"


def _default(setting: Option) -> str:
    if setting.default is None or setting.default == ():
        return ""
    if isinstance(setting.default, tuple):
        return f"`{' '.join(setting.default)}`"
    return f"`{str(setting.default).lower() if setting.kind is bool else setting.default}`"


def _values(setting: Option) -> str:
    several = "may be repeated" if setting.many else ""
    if setting.choices:
        return ", ".join(filter(None, (several, *(f"`{choice}`" for choice in setting.choices))))
    if setting.kind is bool:
        return f"also `--no-{setting.flag[2:]}`" if setting.has_opposite else ""
    if setting.kind is dict:
        return "a JSON object; in the file, a table"
    bounds = setting.bounds
    low = "" if bounds is None or bounds.ge is None else f"from {bounds.ge}"
    high = "" if bounds is None or bounds.le is None else f"to {bounds.le}"
    return " ".join(filter(None, (several, low, high)))


if __name__ == "__main__":
    sys.stdout.write(document())
