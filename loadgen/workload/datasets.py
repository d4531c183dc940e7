"""The datasets: an order for so many requests of one of them -> those requests. Knows no mix and no max_tokens."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from loadgen.client.prompt import Prompt
from loadgen.workload import sharegpt, tasks
from loadgen.workload.errors import WorkloadError
from loadgen.workload.flags import Choice
from loadgen.workload.jsonl import read_jsonl
from loadgen.workload.lengths import clip, load_trace
from loadgen.workload.mix import Part
from loadgen.workload.sample import Sample
from loadgen.workload.stdlib import read_material
from loadgen.workload.synthetic import random_prompts, token_prompt
from loadgen.workload.tokens import Count, RandomTokens, Vocabulary
from loadgen.workload.traces import TRACES

LEAST_MODULES, REQUESTS_PER_MODULE = 16, 16
"""How many modules `builtin` reads: few requests come at once, many come from many texts."""

PATIENCE = 100
"""Requests of `builtin` to draw for each that is short enough."""


@dataclass(frozen=True, slots=True)
class Order:
    """So many requests of one part of a workload, each with the length of its answer, if known, in `replay_tokens`."""

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
        longest = self.choice.cut.max_input
        return longest is None or sample.input_length(self.count) <= longest


def _builtin(order: Order) -> list[Prompt]:
    material = read_material(order.rng, LEAST_MODULES + order.number // REQUESTS_PER_MODULE)
    drawn = itertools.islice(tasks.samples(material, order.rng), PATIENCE * order.number)
    fitting = itertools.islice(filter(order.takes, drawn), order.number)
    prompts = [sample.prompt(order.count) for sample in fitting]
    if len(prompts) < order.number:
        raise WorkloadError("the dataset builtin has hardly a request that is so short; raise --max-input-len")
    return prompts


def _jsonl(order: Order) -> list[Prompt]:
    samples = read_jsonl(order.file, need_reference=order.choice.replays("jsonl"))
    return _drawn(order, [sample.prompt(order.count) for sample in samples if order.takes(sample)])


def _sharegpt(order: Order) -> list[Prompt]:
    fitting = []
    for sample in sharegpt.read_sharegpt(order.file):
        length = order.choice.sharegpt_output or sample.output_length(order.count) or 0
        answer = clip(length, order.choice.cut.max_output)
        if sharegpt.fits(sample.input_length(order.count), answer, order.choice.cut.max_input):
            fitting.append(replace(sample.prompt(order.count), replay_tokens=length))
    return _drawn(order, fitting)


def _random(order: Order) -> list[Prompt]:
    return random_prompts(order.number, order.choice.ranges, order.vocabulary.ids, order.rng)


def _trace(order: Order) -> list[Prompt]:
    tokens, kind = RandomTokens(order.vocabulary.ids, order.rng), order.part.name
    return [
        token_prompt(tokens, one.input_length, one.output_length, label=kind, arrival=one.arrival)
        for one in load_trace(order.file, kind, replace(order.choice.cut, limit=order.number))
    ]


DATASETS: Mapping[str, Callable[[Order], list[Prompt]]] = MappingProxyType(
    {"builtin": _builtin, "random": _random, "jsonl": _jsonl, "sharegpt": _sharegpt} | dict.fromkeys(TRACES, _trace)
)


def _drawn(order: Order, prompts: Sequence[Prompt]) -> list[Prompt]:
    """As many as ordered in random order; all are used equally often."""
    if not prompts:
        raise WorkloadError(f"{order.file}: no request is within the bounds; raise --max-input-len")
    drawn: list[Prompt] = []
    while len(drawn) < order.number:
        drawn += order.rng.sample(prompts, len(prompts))
    return drawn[: order.number]
