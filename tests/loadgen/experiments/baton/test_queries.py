from __future__ import annotations

from collections import Counter

from loadgen.experiments.baton.paper import TARGETS
from loadgen.experiments.baton.queries import draw_queries


def kind(length: int, scale: float) -> str:
    return "long" if length >= 3600 * scale else "short"


def test_the_mix_is_one_to_one_to_two_at_any_scale() -> None:
    for scale in (1.0, 0.125):
        jobs = draw_queries(TARGETS[1], 120, scale, 300, seed=0)
        kinds = Counter((kind(len(job.prompt), scale), kind(job.output_len, scale)) for job in jobs)
        assert kinds == {("long", "short"): 30, ("short", "long"): 30, ("short", "short"): 60}
        assert all(len(job.prompt) <= 4400 * scale and job.output_len <= 4400 * scale for job in jobs)


def test_the_second_set_is_short() -> None:
    jobs = draw_queries(TARGETS[2], 30, 0.5, 300, seed=0)
    assert len(jobs) == 30
    assert all(18 <= len(job.prompt) <= 100 and 18 <= job.output_len <= 100 for job in jobs)


def test_sets_are_shuffled_and_depend_on_their_seed_alone() -> None:
    jobs = draw_queries(TARGETS[1], 40, 0.05, 300, seed=3)
    assert jobs == draw_queries(TARGETS[1], 40, 0.05, 300, seed=3) != draw_queries(TARGETS[1], 40, 0.05, 300, seed=4)
    assert len({kind(len(job.prompt), 0.05) for job in jobs[::4]}) == 2
