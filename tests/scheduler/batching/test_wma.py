"""Wasted memory accesses: the paper's equations by hand, and the short way to them against the long one."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler.batching.wma import BatchLengths, all_reads, batch_lengths, memory_tokens, useful_reads, wma_from_least
from tests.scheduler.batching.wma_oracle import wma

ROWS = (BatchLengths(2, 3), BatchLengths(4, 5), BatchLengths(5, 2))
BATCH = BatchLengths(5, 5)

LENGTHS = st.builds(BatchLengths, st.integers(1, 5000), st.integers(1, 5000))


def test_a_batch_is_as_long_as_its_longest_prompt_and_its_longest_answer() -> None:
    assert batch_lengths(ROWS) == BATCH and BATCH.columns == 10


def test_equation_4_is_the_most_wasteful_row() -> None:
    """36, 15 and 34."""
    assert wma(ROWS) == 36


def test_a_row_alone_is_charged_for_one_iteration() -> None:
    assert wma([BatchLengths(100, 20)]) == 120


def test_equation_5_counts_padding_and_invalid_tokens_too() -> None:
    assert memory_tokens(3, *BATCH) == 30


def test_useful_and_wasted_reads_are_all_reads() -> None:
    assert [useful_reads(*row) for row in ROWS] == [2 + 3 + 4, 4 + 5 + 6 + 7 + 8, 5 + 6]
    assert all_reads(*BATCH) == 5 + 6 + 7 + 8 + 9 + 10
    assert [all_reads(*BATCH) - useful_reads(*row) for row in ROWS] == [36, 15, 34]


@given(rows=st.lists(LENGTHS, min_size=1, max_size=20))
def test_the_least_useful_reads_tell_the_waste_of_a_batch(rows: list[BatchLengths]) -> None:
    batch = batch_lengths(rows)
    least = min(useful_reads(*row) for row in rows)
    assert wma_from_least(*batch, least) == wma(rows)
