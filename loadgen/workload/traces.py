"""The formats of published traces: a file -> when each request came and how long it was.

Formats: Azure LLM inference traces (Azure/AzurePublicDataset), BurstGPT (HPMLL/BurstGPT), Mooncake
(kvcache-ai/Mooncake). It knows nothing of what is made of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from loadgen.workload.lines import at, csv_rows, json_rows, text_lines

LONGEST = 10_000_000
"""Tokens that no real prompt or answer has: what is longer is a damaged number."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One request as the trace has it; `time` is in seconds since whenever the trace's clock started."""

    time: float
    input_length: int
    output_length: int


@dataclass(frozen=True, slots=True)
class Format:
    """A format: how to read rows, and the columns of time, prompt tokens and answer tokens."""

    rows: Callable[[Path, Sequence[str]], Iterator[tuple[int, Mapping[str, Any]]]]
    columns: tuple[str, str, str]
    read_time: Callable[[Path, int, str, Any], float]
    per_second: float = 1.0
    """Units of time in a second."""

    def read(self, path: Path) -> Iterator[Entry]:
        """Every request of a file; raises UserError."""
        time, prompt, answer = self.columns
        for line, row in self.rows(path, self.columns):
            yield Entry(
                self.read_time(path, line, time, row[time]) / self.per_second,
                _tokens(path, line, prompt, row[prompt], least=1),
                _tokens(path, line, answer, row[answer]),
            )


def _date(path: Path, line: int, name: str, text: str) -> float:
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        raise at(path, line, f"{name}: {text!r} is not a date like 2023-11-16 18:15:46.680") from None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _seconds(path: Path, line: int, name: str, value: Any) -> float:
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise at(path, line, f"{name}: {value!r} is not a time")
    return seconds


def _tokens(path: Path, line: int, name: str, value: Any, *, least: int = 0) -> int:
    number = _seconds(path, line, name, value)
    if not number.is_integer() or not least <= number <= LONGEST:
        raise at(path, line, f"{name}: {value!r} is not a number of tokens from {least} to {LONGEST:,}")
    return int(number)


TRACES: Mapping[str, Format] = MappingProxyType(
    {
        "azure": Format(csv_rows, ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _date),
        # 0 response tokens are a failed request.
        "burstgpt": Format(csv_rows, ("Timestamp", "Request tokens", "Response tokens"), _seconds),
        # Its hash_ids, the shared prefixes, are not used.
        "mooncake": Format(json_rows, ("timestamp", "input_length", "output_length"), _seconds, per_second=1000.0),
    }
)


def recognize(path: Path) -> Format:
    """The format that a file's first line shows; raises UserError where that is none of them."""
    first = next((text for _, text in text_lines(path) if text.strip()), "")
    if first.lstrip().startswith("{"):
        return TRACES["mooncake"]
    header = {field.strip().strip('"') for field in first.split(",")}
    tables = [one for one in TRACES.values() if one.rows is csv_rows]
    for one in tables:
        if header.issuperset(one.columns):
            return one
    known = " or ".join(", ".join(one.columns) for one in tables)
    raise at(path, 1, f"is no trace of a known format: the header must name {known}, or each line be a JSON object")
