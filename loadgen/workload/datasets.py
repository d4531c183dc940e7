"""The datasets, by name: each draws as many requests as its portion says. Knows no mix and no max_tokens."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from loadgen.client.request import Prompt
from loadgen.workload.flags import Choice, Part
from loadgen.workload.lengths import TRACES, clip, load_trace
from loadgen.workload.sample import Sample, fits, read_jsonl, read_sharegpt
from loadgen.workload.stdlib import read_material
from loadgen.workload.tasks import samples as draw_samples
from loadgen.workload.tokens import Count, RandomTokens, Vocabulary, draw_length, token_prompt
from models.errors import UserError

LEAST_MODULES, REQUESTS_PER_MODULE = 16, 16
"""Modules that `builtin` reads at least, and requests for which it reads one more."""

DRAWS_PER_REQUEST = 100
"""Requests of `builtin` to draw at most for each that is short enough."""


@dataclass(frozen=True, slots=True)
class Portion:
    """One part of a workload and the number of its requests; each carries the length of its answer, if that is known,
    in `replay_tokens`.
    """

    part: Part
    number: int
    choice: Choice
    vocabulary: Vocabulary
    rng: random.Random

    @property
    def file(self) -> Path:
        assert self.part.path is not None, "checked with the flags"
        return self.part.path

    @property
    def count(self) -> Count:
        return self.vocabulary.count

    def takes(self, sample: Sample) -> bool:
        """Whether a text is short enough."""
        longest = self.choice.max_input_len
        return longest is None or sample.input_length(self.count) <= longest


def _builtin(portion: Portion) -> list[Prompt]:
    material = read_material(portion.rng, LEAST_MODULES + portion.number // REQUESTS_PER_MODULE)
    drawn = itertools.islice(draw_samples(material, portion.rng), DRAWS_PER_REQUEST * portion.number)
    fitting = itertools.islice(filter(portion.takes, drawn), portion.number)
    prompts = [sample.prompt(portion.count) for sample in fitting]
    if len(prompts) < portion.number:
        raise UserError("the dataset builtin has hardly a request that is so short; raise --max-input-len")
    return prompts


def _jsonl(portion: Portion) -> list[Prompt]:
    samples = read_jsonl(portion.file, need_reference=portion.choice.replays("jsonl"))
    return _drawn(portion, [sample.prompt(portion.count) for sample in samples if portion.takes(sample)])


def _sharegpt(portion: Portion) -> list[Prompt]:
    fitting = []
    for sample in read_sharegpt(portion.file):
        length = portion.choice.sharegpt_output_len or sample.output_length(portion.count) or 0
        answer = clip(length, portion.choice.max_output_len)
        if fits(sample.input_length(portion.count), answer, portion.choice.max_input_len):
            fitting.append(replace(sample.prompt(portion.count), replay_tokens=length))
    return _drawn(portion, fitting)


def _random(portion: Portion) -> list[Prompt]:
    asked, rng = portion.choice, portion.rng
    tokens, ratio = RandomTokens(portion.vocabulary.ids, rng), asked.random_range_ratio
    return [
        token_prompt(
            tokens,
            clip(draw_length(asked.random_input_len, ratio, rng), asked.max_input_len),
            clip(draw_length(asked.random_output_len, ratio, rng), asked.max_output_len),
            label="random",
        )
        for _ in range(portion.number)
    ]


def _trace(portion: Portion) -> list[Prompt]:
    tokens, kind = RandomTokens(portion.vocabulary.ids, portion.rng), portion.part.name
    return [
        token_prompt(tokens, one.input_length, one.output_length, label=kind, arrival=one.arrival)
        for one in load_trace(portion.file, kind, portion.choice.cut(portion.number))
    ]


DATASETS: Mapping[str, Callable[[Portion], list[Prompt]]] = MappingProxyType(
    {"builtin": _builtin, "random": _random, "jsonl": _jsonl, "sharegpt": _sharegpt} | dict.fromkeys(TRACES, _trace)
)


def _drawn(portion: Portion, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The number of requests that the portion has, in random order; all prompts are used equally often."""
    if not prompts:
        raise UserError(f"{portion.file}: no request is within the bounds; raise --max-input-len")
    drawn: list[Prompt] = []
    while len(drawn) < portion.number:
        drawn += portion.rng.sample(prompts, len(prompts))
    return drawn[: portion.number]
