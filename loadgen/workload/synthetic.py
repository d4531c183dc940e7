"""The workload `random`: prompts of random tokens, with lengths drawn as `vllm bench serve` draws them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from loadgen.client.prompt import Prompt
from loadgen.workload.lengths import clip
from loadgen.workload.tokens import RandomTokens


@dataclass(frozen=True, slots=True)
class Ranges:
    """Mean lengths in tokens, and how far from them lengths may be, as a share of the mean."""

    input_length: int = 1024
    output_length: int = 128
    ratio: float = 0.0
    max_input: int | None = None
    max_output: int | None = None


def random_prompts(count: int, ranges: Ranges, ids: tuple[int, ...], rng: random.Random) -> list[Prompt]:
    """Prompts with uniform lengths in mean * [1 - ratio, 1 + ratio], the answer's in `replay_tokens`."""
    tokens = RandomTokens(ids, rng)
    return [
        token_prompt(
            tokens,
            clip(_draw(ranges.input_length, ranges.ratio, rng), ranges.max_input),
            clip(_draw(ranges.output_length, ranges.ratio, rng), ranges.max_output),
            label="random",
        )
        for _ in range(count)
    ]


def token_prompt(
    tokens: RandomTokens, input_length: int, output_length: int, *, label: str, arrival: float | None = None
) -> Prompt:
    """A prompt of random tokens whose lengths are given."""
    return Prompt(
        tokens=tokens.take(input_length),
        replay_tokens=output_length,
        arrival=arrival,
        label=label,
        input_length=input_length,
    )


def _draw(mean: int, ratio: float, rng: random.Random) -> int:
    return rng.randint(max(1, math.floor(mean * (1 - ratio))), max(1, math.ceil(mean * (1 + ratio))))
