"""Comparisons as if they had been played, with figures that a test chooses."""

from collections.abc import Mapping, Sequence

from loadgen.compare.record import CompareSetting, Comparison, Contestant, LoadPoint, Play
from loadgen.options import CompareFlags

SETTING = CompareSetting(
    date="2026-01-02 03:04:05",
    machine={"processor": "Abacus & <Sons>", "cores": "2 usable of 2 logical", "memory": "4 GiB", "GPU": "none found"},
    versions={"lengthwise": "0.1.0", "python": "3.11.2"},
    flags={"num_prompts": 20, "serve_args": '--dtype "float32"', "api_key": "(hidden)"},
    environment={"LENGTHWISE_DTYPE": "float32"},
)
POINTS = (LoadPoint(1.0), LoadPoint(2.0), LoadPoint(4.0))


def contestant(name: str) -> Contestant:
    """A server of ours with the strategy of this name."""
    return Contestant(name, name, f"lengthwise serve 'tiny model' --strategy {name}")


def play(contestant: str, round: int, point: LoadPoint, jct: float, more: Mapping[str, object] | None = None) -> Play:
    """A play whose mean job completion time is `jct` seconds, and whose other latencies follow it."""
    figures: dict[str, object] = {
        **{"num_prompts": 20, "interrupted": False, "completed": 20, "failed": 0, "rejected": 0},
        **{"total_output_tokens": 1000, "request_throughput": 1.0, "output_throughput": 50.0},
        **{"mean_jct_ms": jct * 1000, "p99_jct_ms": jct * 2000, "mean_ttft_ms": jct * 100},
        **{"jain_fairness_index": 0.9, "client_warning": None},
    }
    latencies, figures = tuple(jct * share / 10 for share in range(1, 21)), figures | dict(more or {})
    return Play(contestant=contestant, round=round, point=point, figures=figures, latencies=latencies)


def comparison(
    jcts: Mapping[str, Sequence[float]], points: Sequence[LoadPoint] = POINTS, more: Mapping[str, object] | None = None
) -> Comparison:
    """Mean job completion times of each round by contestant, the same under every load."""
    plays = [
        play(name, number, point, jct, more)
        for name, values in jcts.items()
        for number, jct in enumerate(values, 1)
        for point in points
    ]
    return Comparison(CompareFlags(), tuple(map(contestant, jcts)), tuple(points), tuple(plays))
