"""The flags of `lengthwise bench engine`, `bench gpu` and `bench quality`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from models.network.quantization import QUANTIZATIONS, Quantization
from models.options import Count, Natural, option

ROWS = (1, 8, 32, 64)  # rows that engines are compared at, unless flags say

Several = Annotated[int, Meta(ge=2)]
"""A length in which a token follows another."""

KINDS = tuple(kind for kind in QUANTIZATIONS if kind != Quantization.NONE)


@dataclass(frozen=True, kw_only=True)
class BenchedModel:
    """The model that a benchmark loads into this process."""

    model: str = option("smollm2-135m-instruct", positional=True)
    """as for serve"""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option("auto")
    """as for serve"""
    quantization: str = option("auto", choices=lambda: ("auto", *QUANTIZATIONS))
    """as for serve"""
    device: Literal["auto", "cpu", "cuda"] = option("auto")
    """as for serve"""
    seed: int = option(0)
    """seed of the prompts"""


@dataclass(frozen=True, kw_only=True)
class EngineBench(BenchedModel):
    """The parts of a comparison with transformers."""

    rows: tuple[Count, ...] = option(
        (),
        f"rows to compare at (default: {' '.join(map(str, ROWS))}; with --ragged: none)",
        nargs="+",
    )
    input_len: Count = option(64)
    """prompt tokens of a row"""
    output_len: Several = option(64)
    """tokens to generate for a row"""
    rounds: Count = option(3)
    """rounds that count, after one more"""
    beside: tuple[str, ...] = option((), nargs="+", choices=lambda: QUANTIZATIONS)
    """also this engine with its weights kept so"""
    ragged: bool = option(False)
    """compare with requests of different lengths"""
    num_requests: Count = option(128)
    """with --ragged: requests"""
    min_len: Several = option(16)
    """with --ragged: shortest prompt and output"""
    max_len: Several = option(256)
    """with --ragged: longest prompt and output"""
    slots: Count = option(32)
    """with --ragged: rows at a time"""
    save_result: Path | None = option(None)
    """write the figures as JSON"""


@dataclass(frozen=True, kw_only=True)
class GpuBench:
    """What is measured on a GPU."""

    rows: tuple[Count, ...] = option((), nargs="+")
    """rows of decode steps (default: 1 8 64 256)"""
    length: Count | None = option(None)
    """tokens of the longest row; the shortest has half of them (default: 1024)"""
    save_result: Path = option(Path("gpu.json"))
    """the file with all figures"""


@dataclass(frozen=True, kw_only=True)
class QualityBench:
    """The texts to read, and the ways to keep weights."""

    model: str = option("smollm2-135m-instruct", positional=True)
    """as for serve"""
    quantization: tuple[str, ...] = option(
        (), f"which to compare (default: {' '.join(KINDS)})", nargs="+", choices=lambda: KINDS
    )
    dataset_path: tuple[Path, ...] = option((), nargs="+")
    """JSONL files as of the workload `jsonl`, an equal share of each (default: texts of the standard library)"""
    num_texts: Count = option(64)
    """texts, all files together"""
    max_len: Several = option(256)
    """tokens that are read of a text"""
    seed: Natural = option(0)
    """seed of the choice of texts"""
