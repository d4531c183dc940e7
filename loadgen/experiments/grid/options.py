"""Options of `lengthwise bench grid`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from models.options import Count, option


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The loads and contenders that are played, and the file that the outcome goes to."""

    save_result: Path = option(
        Path("grid.jsonl"), "a line a run is appended here; what the file holds already is not played again"
    )
    trace: tuple[str, ...] = option(
        (), "traces, whose lengths are loads too: Azure's or BurstGPT's CSV, Mooncake's JSON lines", metavar="FILE"
    )
    predicted: tuple[str, ...] = option(
        (),
        "predicted lengths of the first --trace, of the second and so on: one a line, by arrival of the requests",
        metavar="FILE",
    )
    num_prompts: Count = option(600, "requests of a run")
    seeds: Count = option(1, "runs of each cell, with other lengths and arrivals")
    save_plot: Path | None = option(None, "draw mean against p99, a plot a load, as SVG")
