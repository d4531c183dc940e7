"""The machines of the papers take the times that their texts print."""

import pytest

from engine.simulated.machine import Machine
from scheduler.serving_time import presets


def seconds(machine: Machine, *batches: tuple[int, int, int]) -> float:
    """Time of batches of (rows, input length, iterations) one after another."""
    cost = machine.cost
    return sum(cost.prefill(rows, length) + cost.decode(rows, length, steps) for rows, length, steps in batches)


PRINTED = [
    (presets.A100_LLAMA2_13B_HF, [(16, 1024, 128)], 13.5),  # SCLS's example of batching
    (presets.A100_LLAMA2_13B_HF, [(15, 10, 128), (1, 1024, 128)], 7.6),
    (presets.A100_LLAMA2_13B_DS, [(16, 1024, 128)], 13.5 / 2),  # DeepSpeed is twice as fast
    (presets.V100_CHATGLM_6B, [(7, 1000, 1000)], 242 / 3),  # Magnus's case study
    (presets.V100_CHATGLM_6B, [(3, 1000, 1000), (18, 10, 10)], 60),
    *((presets.SSJF, [(rows, 700, 50 - 1)], 0.1 + 0.02 * 50) for rows in (1, 64)),  # tokens alone
]


@pytest.mark.parametrize(("machine", "batches", "printed"), PRINTED)
def test_batches_take_printed_seconds(machine: Machine, batches: list[tuple[int, int, int]], printed: float) -> None:
    assert seconds(machine, *batches) == pytest.approx(printed, rel=1e-3)


@pytest.mark.parametrize(("rows", "step"), [(1, 0.0415), (8, 0.052), (32, 0.077), (64, 0.101)])
def test_a_small_cpu_takes_the_time_that_was_measured(rows: int, step: float) -> None:
    assert presets.CPU_SMOLLM2_135M.cost.decode(rows, 127, 1) == pytest.approx(step, rel=0.09)


ROWS = [("v100-chatglm-6b", 7), ("a100-llama2-13b-hf", 28), ("a100-llama2-13b-ds", 12)]


@pytest.mark.parametrize(("name", "rows"), ROWS)
def test_memory_is_as_large_as_in_the_paper(name: str, rows: int) -> None:
    assert presets.PRESETS[name].capacity_tokens // presets.PRESETS[name].context_length == rows


def test_transformers_leave_what_equation_9_says() -> None:
    """48.6 GB for K and V of 0.8192 MB a token; room for 16 rows of 2,048 used to be all."""
    tokens = presets.A100_LLAMA2_13B_HF.capacity_tokens
    assert tokens == 59_326 and tokens * 819_200 <= 48_600_000_000 < (tokens + 1) * 819_200
