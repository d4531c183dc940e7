from __future__ import annotations

import pytest

from loadgen.experiments.engine.feed import Feed, Moment
from loadgen.experiments.engine.job import Job
from models.errors import UserError
from models.network.loader import LoadedModel
from models.text import Text
from scheduler.assembly import assemble
from scheduler.batching.batcher import Limits
from scheduler.strategy import STRATEGIES
from tests.engine.rows import pipeline_of
from tests.loadgen.experiments.engine.parts import ticking

JOBS = [Job(tuple(range(3 + number, 3 + 2 * number + 2)), 2 + 3 * number % 7) for number in range(7)]


def feed_of(model: LoadedModel, text: Text, strategy: str, *, slots: int = 3, capacity: int = 2000) -> Feed:
    pipeline = pipeline_of(model, text, capacity=capacity, rows=slots)
    batcher = assemble(STRATEGIES[strategy], Limits(group_tokens=64, prefill_ahead=1)).batcher
    return Feed(pipeline, batcher, JOBS, ticking(), device="cpu")


@pytest.mark.parametrize("strategy", ["benchmark", "pd", "baton", "baton-pd"])
def test_every_job_gets_as_many_tokens_as_it_asks_for(tiny_model: LoadedModel, tiny_text: Text, strategy: str) -> None:
    feed = feed_of(tiny_model, tiny_text, strategy)
    moments = list(feed.run())
    assert [len(answer) for answer in feed.answers] == [job.output_len for job in JOBS]
    assert sum(moment.tally.generated for moment in moments) == sum(job.output_len for job in JOBS)
    assert sum(moment.tally.prompt for moment in moments) == sum(len(job.prompt) for job in JOBS)
    assert sum(moment.ended for moment in moments) == len(JOBS)
    assert all(moment.shape.rows <= 3 for moment in moments)
    assert [moment.at for moment in moments] == [float(turn) for turn in range(1, len(moments) + 1)]


def test_a_closed_batch_begins_when_the_one_before_it_is_over(tiny_model: LoadedModel, tiny_text: Text) -> None:
    moments = list(feed_of(tiny_model, tiny_text, "benchmark").run())
    assert completions(moments) == batches(3)
    assert sum(moment.tally.invalid for moment in moments) == wasted(3)


def test_rows_join_as_soon_as_a_slot_is_free(tiny_model: LoadedModel, tiny_text: Text) -> None:
    moments = list(feed_of(tiny_model, tiny_text, "baton").run())
    assert sum(moment.tally.invalid for moment in moments) == 0
    running = [moment.shape.rows + moment.ended for moment in moments if moment.tally.generated]
    waiting = len(JOBS) - 3
    joined = [place for place, moment in enumerate(moments) if moment.tally.prompt]
    assert running[0] == 3 and len(joined) > waiting // 3
    assert len(moments) < sum(max(job.output_len for job in JOBS[first : first + 3]) for first in (0, 3, 6))


def test_a_row_that_no_memory_holds_is_an_error(tiny_model: LoadedModel, tiny_text: Text) -> None:
    with pytest.raises(UserError, match="row"):
        list(feed_of(tiny_model, tiny_text, "baton-pd", slots=1, capacity=6).run())


def batches(size: int) -> list[int]:
    """How many queries are complete when a batch has ended, by hand."""
    return [*range(size, len(JOBS), size), len(JOBS)]


def completions(moments: list[Moment]) -> list[int]:
    """How many queries are complete whenever the batch is empty again."""
    done, found = 0, []
    for moment in moments:
        done += moment.ended
        if moment.ended and not moment.shape.rows:
            found.append(done)
    return found


def wasted(size: int) -> int:
    """Tokens for rows that have ended while their batch goes on, by hand."""
    groups = [JOBS[first : first + size] for first in range(0, len(JOBS), size)]
    return sum(max(one.output_len for one in group) - job.output_len for group in groups for job in group)
