"""The formats of published traces: a file -> when each request came and how long it was.

Formats: Azure LLM inference traces (Azure/AzurePublicDataset), BurstGPT (HPMLL/BurstGPT), Mooncake
(kvcache-ai/Mooncake). It knows nothing of what is made of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from loadgen.workload.errors import at
from loadgen.workload.lines import csv_rows, json_objects

LONGEST = 10_000_000
"""Tokens that no real prompt or answer has: what is longer is a damaged number."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One request as the trace has it; `time` is in seconds since whenever the trace's clock started."""

    time: float
    input_length: int
    output_length: int


def azure(path: Path) -> Iterator[Entry]:
    """CSV with dates: TIMESTAMP, ContextTokens, GeneratedTokens."""
    for line, row in csv_rows(path, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
        yield Entry(
            _date(path, line, row["TIMESTAMP"]),
            _tokens(path, line, "ContextTokens", row["ContextTokens"], least=1),
            _tokens(path, line, "GeneratedTokens", row["GeneratedTokens"]),
        )


def burstgpt(path: Path) -> Iterator[Entry]:
    """CSV with seconds: Timestamp, Request tokens, Response tokens; 0 response tokens are a failed request."""
    for line, row in csv_rows(path, ("Timestamp", "Request tokens", "Response tokens")):
        yield Entry(
            _seconds(path, line, "Timestamp", row["Timestamp"]),
            _tokens(path, line, "Request tokens", row["Request tokens"], least=1),
            _tokens(path, line, "Response tokens", row["Response tokens"]),
        )


def mooncake(path: Path) -> Iterator[Entry]:
    """JSONL with milliseconds: timestamp, input_length, output_length; hash_ids, the shared prefixes, are not used."""
    for line, row in json_objects(path):
        missing = [key for key in ("timestamp", "input_length", "output_length") if key not in row]
        if missing:
            raise at(path, line, f"lacks {', '.join(missing)}")
        yield Entry(
            _seconds(path, line, "timestamp", row["timestamp"]) / 1000,
            _tokens(path, line, "input_length", row["input_length"], least=1),
            _tokens(path, line, "output_length", row["output_length"]),
        )


TRACES: Mapping[str, Callable[[Path], Iterator[Entry]]] = MappingProxyType(
    {"azure": azure, "burstgpt": burstgpt, "mooncake": mooncake}
)


def _date(path: Path, line: int, text: str) -> float:
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        raise at(path, line, f"TIMESTAMP: {text!r} is not a date like 2023-11-16 18:15:46.680") from None
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
