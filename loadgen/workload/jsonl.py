"""The workload `jsonl`: a file of `instruction`, `input`, `reference` and `turns`, an object a line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadgen.workload.lines import at, json_objects
from loadgen.workload.sample import Sample
from models.errors import UserError


def read_jsonl(path: Path, *, need_reference: bool) -> list[Sample]:
    """Every line's request; raises UserError, also for a line without a reference where one is needed.

    `turns` are what a user said one after the other. The answers in between are not in the file, so the turns are
    sent as one message, the last of them at its end; `input` is then not used.
    """
    samples = []
    for line, row in json_objects(path):
        samples.append(_sample(path, line, row))
        if need_reference and not samples[-1].reference:
            raise at(path, line, "has no reference, whose length --replay-lengths needs")
    if not samples:
        raise UserError(f"{path}: holds no requests")
    return samples


def _sample(path: Path, line: int, row: Mapping[str, Any]) -> Sample:
    instruction, given, reference = (_text(path, line, row, key) for key in ("instruction", "input", "reference"))
    text = "\n\n".join(_turns(path, line, row)) or given
    if not (instruction or text):
        raise at(path, line, "has no text: give instruction, input or turns")
    return Sample(path.stem, instruction, text, reference)


def _text(path: Path, line: int, row: Mapping[str, Any], key: str) -> str:
    value = row.get(key) or ""
    if not isinstance(value, str):
        raise at(path, line, f"{key}: must be a string, not {type(value).__name__}")
    return value


def _turns(path: Path, line: int, row: Mapping[str, Any]) -> list[str]:
    turns = row.get("turns") or []
    if not (isinstance(turns, list) and all(isinstance(turn, str) and turn for turn in turns)):
        raise at(path, line, "turns: must be a list of strings, none of them empty")
    return turns
