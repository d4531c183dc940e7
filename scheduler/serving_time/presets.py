"""Machines of the papers, from what their texts tell, a small CPU, and an 8B model on a GPU, by arithmetic. Knows no
trace and no strategy.

Each speed is a bilinear serving-time model (bilinear.py). The papers print few timings, so the fewest terms are
used: a prefill costs p1 a token and p4, an iteration d1 a cell and d4, and p4 = d4, since both read the weights once.
p1 is arithmetic: 2 operations a parameter and token, at half of what the tensor cores can do. d1 and d4 are solved for.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.simulated.machine import Machine
from scheduler.serving_time.bilinear import Bilinear

LENGTH = 2048
"""Longest prompt plus answer: Magnus and SCLS set 1,024 for each."""

ROWS = 256
"""Slots of an executor: more than the memory of any of these machines lets a batch have."""


def _simple(token: float, cell: float, pass_: float) -> Bilinear:
    return Bilinear(p1=token, p4=pass_, d1=cell, d4=pass_)


def _paper(cost: Bilinear, capacity_tokens: int, workers: int = 1) -> Machine:
    """A paper's machines, whose memory alone bounds their batches."""
    return Machine(cost, capacity_tokens, max_num_seqs=ROWS, context_length=LENGTH, workers=workers)


V100_CHATGLM_6B = _paper(_simple(token=1.984e-4, cell=3.398e-6, pass_=0.04354), 7 * LENGTH, workers=7)
"""Magnus: ChatGLM-6B (6.2e9 parameters) on a V100 32 GB (125e12 operations/s) with transformers; 7 of them served.

From the case study of section II-E: three batches of 7 rows with about 1,000 tokens in and out take 242 s, while one of
3 such rows and one of 18 with about 10 in and out take 60 s. Memory: the fixed batch size of 7 (section IV-A).
"""

# 0.9 of 80 GB less 26 GB (13e9 parameters of 2 bytes) is 48.6 GB; a token's K and V take 2 x 40 layers x 5,120 numbers
# x 2 bytes = 819,200 bytes: 59,326 tokens, which is 28 rows of the greatest length.
_A100_TOKENS = int(0.9 * (80e9 - 26e9) / 819_200)

A100_LLAMA2_13B_HF = _paper(_simple(token=1.667e-4, cell=3.385e-6, pass_=0.02499), _A100_TOKENS, workers=8)
"""SCLS: LLaMA2-13B on an A100 80 GB (312e12 operations/s) with transformers; 8 of them served.

From the example of section 4.4, all with 128 iterations: 16 rows padded to 1,024 tokens take 13.5 s; 15 rows of 10
tokens and one of 1,024, as two batches, 7.6 s. Memory: equations 6 and 9 with ζ = 0.9 (section 5.1), nothing for the
engine; batches of a fixed size have 16 rows all the same.
"""

A100_LLAMA2_13B_DS = _paper(_simple(token=1.667e-4, cell=8.806e-7, pass_=0.01594), 12 * LENGTH, workers=8)
"""SCLS: the same with DeepSpeed. The text has no timing of it, so it is the least certain of these machines.

A pass reads 26 GB of weights at 80 % of 2.039 TB/s, and the cell's cost makes the 16 rows of the example twice as fast
as with transformers, since Γ, chosen "according to their inference speed", is 3 s for it and 6 s for transformers
(section 5.1). Memory: the fixed batch size of 12, which is Algorithm 2's for the longest rows; its other
steps, 22 and 28 rows, are the memory rule `deepspeed`.
"""

SSJF = _paper(Bilinear(p4=0.12, d4=0.02), ROWS * LENGTH)
"""SSJF's simulator: 0.1 s a request and 0.02 s a token, the first one included, whatever else runs; no memory limit."""

CPU_SMOLLM2_135M = Machine(
    cost=Bilinear(p1=9e-4, p4=0.02, d1=1.15e-6, d2=8e-4, d4=0.0405),
    capacity_tokens=32 * LENGTH,
    max_num_seqs=32,
    context_length=LENGTH,
)
"""SmolLM2-135M in bfloat16 on two cores of an AMD EPYC with AVX-512, on this engine.

Iterations of 1, 8, 32 and 64 rows of 128 tokens took 41.5, 52, 77 and 101 ms; by this model they take 42, 48, 71 and
101. A cell of K and V is 23 kB at 20 GB/s, and a prompt's token 2.7e8 operations at 3e11 a second, by arithmetic.
"""

WEIGHTS = 8.03e9
"""Parameters of Llama 3 8B; in bfloat16 of 2 bytes each."""

CELL = 2 * 32 * 8 * 128 * 2
"""Bytes of K and V of one of its tokens: 32 layers of 8 heads of 128 numbers of 2 bytes."""


def _llama3_8b(bandwidth: float, operations: float, link: float) -> Machine:
    """Llama 3 8B in bfloat16 on a card of 80 GB, from its data sheet: bytes/s of its memory, operations/s in bfloat16,
    and bytes/s to host memory. No such card was measured.

    A pass reads the weights and each row's K and V at 0.85 of the bandwidth. Prompts are read at half of the
    operations, attention's 2 x 32 layers x 4,096 a pair of tokens among them. 256 rows are multiplied at 0.7 of the
    operations; what that takes longer than reading the weights is spread evenly over the rows, so between 1 and 256
    rows a step is up to a quarter dearer than the greater of the two. K and V take what 0.9 of the memory leaves
    beside the weights.
    """
    weights, token, read = 2 * WEIGHTS, 2 * WEIGHTS / operations, 0.85 * bandwidth
    beyond = max(0.0, token / 0.7 - weights / read / ROWS)
    return Machine(
        cost=Bilinear(
            p1=2 * token,
            p4=weights / read,
            p5=2 * 2 * 32 * 4096 / operations,
            d1=CELL / read,
            d2=beyond,
            d4=weights / read,
            c1=2 * CELL / link,
        ),
        capacity_tokens=int((0.9 * 80e9 - weights) / CELL),
        max_num_seqs=ROWS,
        context_length=8192,
        max_prefill_tokens=2048,
        prefix_cache_tokens=2**18,
    )


A100_8B = _llama3_8b(2.039e12, 312e12, 25e9)
"""A100 SXM: 9.3 ms a step for one row."""

H100_8B = _llama3_8b(3.35e12, 989e12, 50e9)
"""H100 SXM: 5.6 ms a step for one row, 9 for 256 rows of 260 tokens."""

PRESETS: Mapping[str, Machine] = {
    "v100-chatglm-6b": V100_CHATGLM_6B,
    "a100-llama2-13b-hf": A100_LLAMA2_13B_HF,
    "a100-llama2-13b-ds": A100_LLAMA2_13B_DS,
    "ssjf": SSJF,
    "cpu-smollm2-135m": CPU_SMOLLM2_135M,
    "a100-8b": A100_8B,
    "h100-8b": H100_8B,
}

VIRTUAL = "virtual"


def find_virtual(device: str) -> Machine | None:
    """The machine of a `--device virtual:PRESET`; None for another device. Raises ValueError, naming the presets."""
    kind, _, preset = device.partition(":")
    if kind != VIRTUAL:
        return None
    if preset not in PRESETS:
        raise ValueError(f"{device!r} is none of {', '.join(f'{VIRTUAL}:{name}' for name in PRESETS)}")
    return PRESETS[preset]
