"""The formats of published traces: a file -> when each request came and how long it was.

Formats: Azure LLM inference traces (Azure/AzurePublicDataset), BurstGPT (HPMLL/BurstGPT), Mooncake
(kvcache-ai/Mooncake). It knows nothing of what is made of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
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
    per_second: float = 1.0
    """Units of time in a second, where times are numbers."""

    def read(self, path: Path) -> Iterator[Entry]:
        """Every request of a file; raises UserError."""
        time, prompt, answer = self.columns
        for line, row in self.rows(path, self.columns):
            yield Entry(
                _seconds(path, line, time, row[time], self.per_second),
                _tokens(path, line, prompt, row[prompt], least=1),
                _tokens(path, line, answer, row[answer]),
            )


def _seconds(path: Path, line: int, name: str, value: Any, per_second: float) -> float:
    """The seconds of a time, which is a number or a date, in UTC unless it says otherwise."""
    number = _number(value)
    if math.isnan(number) and isinstance(value, str):
        with suppress(ValueError):
            date = datetime.fromisoformat(value)
            return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    if not (math.isfinite(number) and number >= 0):
        raise at(path, line, f"{name}: {value!r} is neither a number nor a date like 2023-11-16 18:15:46.680")
    return number / per_second


def _tokens(path: Path, line: int, name: str, value: Any, *, least: int = 0) -> int:
    number = _number(value)
    if not number.is_integer() or not least <= number <= LONGEST:
        raise at(path, line, f"{name}: {value!r} is not a number of tokens from {least} to {LONGEST:,}")
    return int(number)


def _number(value: Any) -> float:
    """The number that a field holds; NaN where it holds none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


TRACES: Mapping[str, Format] = MappingProxyType(
    {
        "azure": Format(csv_rows, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")),
        # 0 response tokens are a failed request.
        "burstgpt": Format(csv_rows, ("Timestamp", "Request tokens", "Response tokens")),
        # Its hash_ids, the shared prefixes, are not used.
        "mooncake": Format(json_rows, ("timestamp", "input_length", "output_length"), per_second=1000.0),
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
