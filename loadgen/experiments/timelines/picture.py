"""Timelines as one SVG: a panel a strategy, a line a request, which stands alone on light and on dark pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from loadgen.experiments.timelines.families import Timeline

LEFT, PLOT, RIGHT = 40, 660, 20
PITCH, HEAD, FOOT = 11, 30, 40
LEGEND = "left: tokens of each answer. Thin: it waits. Thick: it is on an executor."
RETURNED = " Dashed: it has ended and waits for its batch."
CLIENTS = " A colour a client."


def draw(timelines: Sequence[Timeline]) -> str:
    """The picture, all panels on one axis of seconds."""
    end = max(one.end for one in timelines)
    panel = HEAD + PITCH * len(timelines[0].lines)
    height = panel * len(timelines) + FOOT
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, autoescape=True, trim_blocks=True
    )
    environment.filters["x"] = lambda seconds: round(LEFT + PLOT * seconds / end, 1)
    environment.filters["span"] = lambda held: round(PLOT * (held[1] - held[0]) / end, 1)
    return environment.get_template("picture.svg.j2").render(
        title=f"Timelines of {', '.join(one.strategy for one in timelines)}",
        width=LEFT + PLOT + RIGHT,
        height=height,
        left=LEFT,
        pitch=PITCH,
        top=HEAD - 4,
        bottom=height - FOOT + 6,
        ticks=range(0, int(end) + 1, 2 if end < 15 else 5),
        panels=[
            {"timeline": one, "y": HEAD + panel * place, "note": _note(one)} for place, one in enumerate(timelines)
        ],
        legend=_legend(timelines),
    )


def _note(timeline: Timeline) -> str:
    """Mean times from arrival to last token, of all requests and where there are several of each client."""
    clients = dict.fromkeys(line.client for line in timeline.lines)
    means = [f"{name} {_mean(timeline, name):.1f} s" for name in clients if len(clients) > 1]
    return ", ".join([f"mean time to the last token {timeline.mean:.1f} s", *means])


def _mean(timeline: Timeline, client: str) -> float:
    return fmean(line.end - line.arrival for line in timeline.lines if line.client == client)


def _legend(timelines: Iterable[Timeline]) -> str:
    lines = [line for one in timelines for line in one.lines]
    returned = RETURNED if any(line.end > line.held[-1][1] for line in lines) else ""
    return LEGEND + returned + (CLIENTS if len({line.client for line in lines}) > 1 else "")
