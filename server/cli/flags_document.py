"""All settings of `lengthwise serve` as a table for docs/flags.md: `make docs` writes it."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

from server.cli.config import ServeConfig
from server.cli.settings import Setting, settings, written

HEAD = """# Every flag of `lengthwise serve`

Each is also an environment variable (`--max-num-seqs` is `LENGTHWISE_MAX_NUM_SEQS`) and a key of the TOML file that
`--config` names (`max_num_seqs`). The command line wins over the environment, the environment over the file. Flags are
named as vLLM's where they mean the same. `make docs` writes this page from the program.

| flag | default | values | meaning |
|---|---|---|---|
"""


def document() -> str:
    """The page."""
    return HEAD + "".join(_lines())


def _lines() -> Iterator[str]:
    for setting in settings(ServeConfig):
        name = setting.name.upper() if setting.positional else setting.flag
        help_text = setting.help.replace("|", "\\|")
        yield f"| `{name}` | {_default(setting)} | {_values(setting)} | {help_text} |\n"


def _default(setting: Setting) -> str:
    if setting.default is None or setting.default == ():
        return ""
    if isinstance(setting.default, tuple):
        return f"`{' '.join(setting.default)}`"
    return f"`{str(setting.default).lower() if setting.kind is bool else setting.default}`"


def _values(setting: Setting) -> str:
    several = "may be repeated" if setting.many else ""
    if setting.choices:
        return ", ".join(filter(None, (several, *(f"`{choice}`" for choice in setting.choices))))
    if setting.kind is bool:
        return f"also `--no-{setting.flag[2:]}`" if setting.has_opposite else ""
    if setting.kind is dict:
        return "a JSON object; in the file, a table"
    low = "" if setting.low == -math.inf else f"from {written(setting.low)}"
    high = "" if setting.high == math.inf else f"to {written(setting.high)}"
    return " ".join(filter(None, (several, low, high)))


if __name__ == "__main__":
    sys.stdout.write(document())
