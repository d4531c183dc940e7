"""Machines of the papers, from their texts, a small CPU, and an 8B model on a GPU, as bilinear models. Few timings are
printed: a prefill costs p1 a token and p4, an iteration d1 a cell and d4 = p4 (reading the weights); p1 is 2 operations
a parameter at half the peak.
"""

from collections.abc import Mapping

from engine.simulated.machine import Machine
from scheduler.serving_time.bilinear import Bilinear

LENGTH = 2048  # prompt plus answer; Magnus and SCLS set 1,024 for each

ROWS = 256  # slots: more than memory allows


def _simple(token: float, cell: float, pass_: float) -> Bilinear:
    return Bilinear(p1=token, p4=pass_, d1=cell, d4=pass_)


def _paper(cost: Bilinear, capacity_tokens: int, workers: int = 1) -> Machine:
    return Machine(cost, capacity_tokens, max_num_seqs=ROWS, context_length=LENGTH, workers=workers)


# Magnus: ChatGLM-6B (6.2e9 parameters) on a V100 32 GB with transformers, 7 machines; section II-E: 3 batches of 7 rows
# of 1,000 + 1,000 tokens take 242 s, one of 3 and one of 18 of 10 + 10 60 s; 7 rows fit (section IV-A)
V100_CHATGLM_6B = _paper(_simple(token=1.984e-4, cell=3.398e-6, pass_=0.04354), 7 * LENGTH, workers=7)

# 0.9 of 80 GB less 26 GB of weights; 2 x 40 layers x 5,120 x 2 bytes a token: 59,326 tokens, 28 rows of the greatest
# length
_A100_TOKENS = int(0.9 * (80e9 - 26e9) / 819_200)

# SCLS: LLaMA2-13B on an A100 80 GB with transformers, 8 machines; section 4.4, 128 iterations: 16 rows padded to 1,024
# tokens take 13.5 s, 15 of 10 and one of 1,024 as two batches 7.6 s; equations 6 and 9 with ζ = 0.9
A100_LLAMA2_13B_HF = _paper(_simple(token=1.667e-4, cell=3.385e-6, pass_=0.02499), _A100_TOKENS, workers=8)

# SCLS with DeepSpeed, the least certain: 26 GB at 80 % of 2.039 TB/s, the example twice as fast, as Γ is 3 s instead of
# 6 (section 5.1); 12 rows are Algorithm 2's for the longest, its other steps the rule `deepspeed`
A100_LLAMA2_13B_DS = _paper(_simple(token=1.667e-4, cell=8.806e-7, pass_=0.01594), 12 * LENGTH, workers=8)

# SSJF's simulator: 0.1 s a request, 0.02 s a token, no memory limit
SSJF = _paper(Bilinear(p4=0.12, d4=0.02), ROWS * LENGTH)

# SmolLM2-135M in bfloat16 on two AVX-512 cores of an AMD EPYC, this engine: 1, 8, 32 and 64 rows of 128 tokens took
# 41.5, 52, 77 and 101 ms
CPU_SMOLLM2_135M = Machine(
    Bilinear(p1=9e-4, p4=0.02, d1=1.15e-6, d2=8e-4, d4=0.0405), 32 * LENGTH, max_num_seqs=32, context_length=LENGTH
)

WEIGHTS = 8.03e9  # Llama 3 8B

CELL = 2 * 32 * 8 * 128 * 2  # bytes of KV cache a token: 32 layers of 8 heads of 128


def _llama3_8b(bandwidth: float, operations: float, link: float) -> Machine:
    """Llama 3 8B in bfloat16 on an 80 GB card, by its data sheet, not measured: 0.85 of the memory bandwidth (bytes/s),
    half of the operations/s to prefill, 0.7 for 256 rows, spread evenly; KV cache in 0.9 of the memory.
    """
    weights, token, read = 2 * WEIGHTS, 2 * WEIGHTS / operations, 0.85 * bandwidth
    step, square = weights / read, 2 * 2 * 32 * 4096 / operations
    beyond = max(0.0, token / 0.7 - step / ROWS)
    return Machine(
        Bilinear(p1=2 * token, p4=step, p5=square, d1=CELL / read, d2=beyond, d4=step, c1=2 * CELL / link),
        capacity_tokens=int((0.9 * 80e9 - weights) / CELL),
        max_num_seqs=ROWS,
        context_length=8192,
        max_prefill_tokens=2048,
        prefix_cache_tokens=2**18,
    )


A100_8B = _llama3_8b(2.039e12, 312e12, 25e9)  # SXM: 9.3 ms a step for one row

H100_8B = _llama3_8b(3.35e12, 989e12, 50e9)  # SXM: 5.6 ms a step for one row, 9 for 256 rows of 260 tokens

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
    """Of `--device virtual:PRESET`, or None. Raises ValueError, naming the presets."""
    kind, _, preset = device.partition(":")
    if kind != VIRTUAL:
        return None
    if preset not in PRESETS:
        raise ValueError(f"{device!r} is none of {', '.join(f'{VIRTUAL}:{name}' for name in PRESETS)}")
    return PRESETS[preset]
