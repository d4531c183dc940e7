"""The requests of a workload, as its flags ask for them; everything is read and checked before the first is sent."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from loadgen.client.request import Prompt
from loadgen.workload.flags import Workload
from loadgen.workload.lengths import TRACES, clip, load_trace
from loadgen.workload.sample import (
    Count,
    RandomTokens,
    Sample,
    Vocabulary,
    draw_length,
    fits,
    load_vocabulary,
    read_jsonl,
    read_sharegpt,
)
from loadgen.workload.tasks import read_material
from loadgen.workload.tasks import samples as draw_samples
from models.errors import UserError

LEAST_MODULES, REQUESTS_PER_MODULE = 16, 16
"""Modules that `builtin` reads at least, and requests for which it reads one more."""

DRAWS_PER_REQUEST = 100
"""Requests of `builtin` to draw at most for each that is short enough."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """What requests are drawn with; each carries the length of its answer, if that is known, in `replay_tokens`."""

    workload: Workload
    requests: int
    vocabulary: Vocabulary
    rng: random.Random

    @property
    def count(self) -> Count:
        return self.vocabulary.count

    def takes(self, sample: Sample) -> bool:
        """Whether a text is short enough."""
        longest = self.workload.max_input_len
        return longest is None or sample.input_length(self.count) <= longest


def _builtin(drawing: Drawing) -> list[Prompt]:
    material = read_material(drawing.rng, LEAST_MODULES + drawing.requests // REQUESTS_PER_MODULE)
    drawn = itertools.islice(draw_samples(material, drawing.rng), DRAWS_PER_REQUEST * drawing.requests)
    fitting = itertools.islice(filter(drawing.takes, drawn), drawing.requests)
    prompts = [sample.prompt(drawing.count) for sample in fitting]
    if len(prompts) < drawing.requests:
        raise UserError("the dataset builtin has hardly a request that is so short; raise --max-input-len")
    return prompts


def _jsonl(drawing: Drawing) -> list[Prompt]:
    samples = read_jsonl(drawing.workload.file, need_reference=drawing.workload.replays)
    return _drawn(drawing, [sample.prompt(drawing.count) for sample in samples if drawing.takes(sample)])


def _sharegpt(drawing: Drawing) -> list[Prompt]:
    fitting = []
    for sample in read_sharegpt(drawing.workload.file):
        length = drawing.workload.sharegpt_output_len or sample.output_length(drawing.count) or 0
        answer = clip(length, drawing.workload.max_output_len)
        if fits(sample.input_length(drawing.count), answer, drawing.workload.max_input_len):
            fitting.append(replace(sample.prompt(drawing.count), replay_tokens=length))
    return _drawn(drawing, fitting)


def _random(drawing: Drawing) -> list[Prompt]:
    asked, rng = drawing.workload, drawing.rng
    means = ((asked.random_input_len, asked.max_input_len), (asked.random_output_len, asked.max_output_len))
    ratio = asked.random_range_ratio
    drawn = ([clip(draw_length(mean, ratio, rng), most) for mean, most in means] for _ in range(drawing.requests))
    return _of_tokens(drawing, ((read, made, None) for read, made in drawn))


def _trace(drawing: Drawing) -> list[Prompt]:
    trace = load_trace(drawing.workload.file, drawing.workload.dataset, drawing.workload.cut(drawing.requests))
    return _of_tokens(drawing, ((one.input_length, one.output_length, one.arrival) for one in trace))


def _of_tokens(drawing: Drawing, lengths: Iterable[tuple[int, int, float | None]]) -> list[Prompt]:
    """Prompts of random tokens, by the tokens of prompt and answer, and when they arrive."""
    tokens, label = RandomTokens(drawing.vocabulary.ids, drawing.rng), drawing.workload.dataset
    return [
        Prompt(tokens=tokens.take(read), replay_tokens=made, arrival=arrival, label=label, input_length=read)
        for read, made, arrival in lengths
    ]


DATASETS: Mapping[str, Callable[[Drawing], list[Prompt]]] = MappingProxyType(
    {"builtin": _builtin, "random": _random, "jsonl": _jsonl, "sharegpt": _sharegpt} | dict.fromkeys(TRACES, _trace)
)


def _drawn(drawing: Drawing, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The number of requests that are wanted, in random order; all prompts are used equally often."""
    if not prompts:
        raise UserError(f"{drawing.workload.file}: no request is within the bounds; raise --max-input-len")
    drawn: list[Prompt] = []
    while len(drawn) < drawing.requests:
        drawn += drawing.rng.sample(prompts, len(prompts))
    return drawn[: drawing.requests]


def join_turns(prompts: Sequence[Prompt], turns: int) -> list[Prompt]:
    """Conversations of `turns` chat requests each, in their order; the last one may be shorter. Raises UserError."""
    if turns > 1 and not all(prompt.messages for prompt in prompts):
        raise UserError("--turns: this workload's requests are not chat messages, so none can follow another")
    texts = ["\n\n".join(message["content"] for message in prompt.messages) for prompt in prompts]
    return [
        replace(prompts[place], follow_ups=tuple(texts[place + 1 : place + turns]))
        for place in range(0, len(prompts), turns)
    ]


IMPOSED = ("random", *TRACES)
"""Datasets of random tokens: no model ends an answer to them at a length that means anything."""


def load(workload: Workload, requests: int, seed: int) -> list[Prompt]:
    """The requests of a workload, in the order to send them; traces may hold fewer than asked for. Raises UserError."""
    workload.refuse()
    vocabulary = load_vocabulary(workload.tokenizer, workload.random_vocab_size)
    drawing = Drawing(workload, requests, vocabulary, random.Random(f"{seed}, part 0"))
    prompts = DATASETS[workload.dataset](drawing)
    longest = max((prompt.replay_tokens or 0 for prompt in prompts), default=0)
    bound = workload.max_output_len or longest or None
    return [_finished(prompt, workload, bound) for prompt in prompts]


def ignores_eos(workload: Workload) -> bool:
    """Whether the requests need ignore_eos: they are random tokens, and the lengths are imposed by max_tokens alone."""
    return workload.dataset in IMPOSED and not workload.replays


def _finished(prompt: Prompt, workload: Workload, bound: int | None) -> Prompt:
    """The request with its max_tokens.

    Replayed answers all get the same bound, so that it tells the server nothing about the length of one.
    """
    length = None if prompt.replay_tokens is None else clip(prompt.replay_tokens, workload.max_output_len)
    if workload.replays:
        return replace(prompt, max_tokens=bound, replay_tokens=length)
    imposed = workload.dataset in (*IMPOSED, "sharegpt")
    return replace(prompt, max_tokens=length if imposed else bound, replay_tokens=None)
