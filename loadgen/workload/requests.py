"""The requests of a workload, as its flags ask for them; everything is read and checked before the first is sent."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from loadgen.client.request import Prompt
from loadgen.workload.flags import Choice, Part
from loadgen.workload.lengths import TRACES, clip, load_trace
from loadgen.workload.sample import Sample, fits, read_jsonl, read_sharegpt
from loadgen.workload.tasks import read_material
from loadgen.workload.tasks import samples as draw_samples
from loadgen.workload.tokens import Count, RandomTokens, Vocabulary, draw_length, load_vocabulary, token_prompt
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


def join_turns(prompts: Sequence[Prompt], turns: int) -> list[Prompt]:
    """Conversations of `turns` chat requests each, in their order; the last one may be shorter. Raises UserError."""
    if turns > 1 and not all(prompt.messages for prompt in prompts):
        raise UserError("--turns: this workload's requests are not chat messages, so none can follow another")
    groups = (prompts[place : place + turns] for place in range(0, len(prompts), turns))
    return [_join(first, later) for first, *later in groups]


def _join(first: Prompt, later: Sequence[Prompt]) -> Prompt:
    return replace(first, follow_ups=tuple("\n\n".join(_texts(prompt)) for prompt in later))


def _texts(prompt: Prompt) -> Iterator[str]:
    for message in prompt.messages:
        yield message["content"]


IMPOSED = ("random", *TRACES)
"""Datasets of random tokens: no model ends an answer to them at a length that means anything."""


def load(choice: Choice) -> list[Prompt]:
    """The requests of a workload, in the order to send them; traces may hold fewer than asked for. Raises UserError."""
    vocabulary = load_vocabulary(choice.tokenizer, choice.random_vocab_size)
    chosen = choice.parts
    shares = share_out([part.weight for part in chosen], choice.num_prompts)
    portions = [
        Portion(part, share, choice, vocabulary, random.Random(f"{choice.seed}, part {place}"))
        for place, (part, share) in enumerate(zip(chosen, shares, strict=True))
        if share
    ]
    loaded = [(portion, DATASETS[portion.part.name](portion)) for portion in portions]
    longest = max((prompt.replay_tokens or 0 for _, prompts in loaded for prompt in prompts), default=0)
    bound = choice.max_output_len or longest or None
    parts = [[_finished(prompt, portion.part.name, choice, bound) for prompt in prompts] for portion, prompts in loaded]
    if len(chosen) == 1:
        return parts[0]
    _refuse_short(loaded)
    return _mixed(parts, random.Random(f"{choice.seed}, mix"))


def ignores_eos(choice: Choice) -> bool:
    """Whether the requests need ignore_eos: all are random tokens, and the lengths are imposed by max_tokens alone."""
    return all(part.name in IMPOSED and not choice.replays(part.name) for part in choice.parts)


def _finished(prompt: Prompt, name: str, choice: Choice, bound: int | None) -> Prompt:
    """The request with its max_tokens.

    Replayed answers all get the same bound, so that it tells the server nothing about the length of one.
    """
    length = None if prompt.replay_tokens is None else clip(prompt.replay_tokens, choice.max_output_len)
    if choice.replays(name):
        return replace(prompt, max_tokens=bound, replay_tokens=length)
    imposed = name in (*IMPOSED, "sharegpt")
    return replace(prompt, max_tokens=length if imposed else bound, replay_tokens=None)


def _refuse_short(loaded: Sequence[tuple[Portion, Sequence[Prompt]]]) -> None:
    for portion, prompts in loaded:
        if len(prompts) < portion.number:
            raise UserError(
                f"{portion.file}: the mix needs {portion.number} requests of it, but the part to play has "
                f"{len(prompts)}; lower --num-prompts or its weight, or play more of it"
            )


def _mixed(parts: Sequence[Sequence[Prompt]], rng: random.Random) -> list[Prompt]:
    """The requests of all parts by arrival, if all have one; else in random order, each part's own order kept."""
    together = [prompt for part in parts for prompt in part]
    if all(prompt.arrival is not None for prompt in together):
        return sorted(together, key=lambda prompt: prompt.arrival or 0.0)
    turns = [place for place, part in enumerate(parts) for _ in part]
    rng.shuffle(turns)
    rest = [iter(part) for part in parts]
    return [replace(next(rest[turn]), arrival=None) for turn in turns]


def share_out(weights: Sequence[float], total: int) -> list[int]:
    """`total` shared out by weight, to within one of the exact shares (largest remainder)."""
    exact = [total * weight / sum(weights) for weight in weights]
    shares = [math.floor(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda place: shares[place] - exact[place])
    for place in by_remainder[: total - sum(shares)]:
        shares[place] += 1
    return shares
