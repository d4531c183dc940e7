"""A workload's flags and requests, all checked before the first is sent."""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from loadgen.client.request import PROGRAMS, LoadPrompt
from loadgen.workload import tasks
from loadgen.workload.lengths import TRACES, Cut, RequestLengths, clip, load_trace
from loadgen.workload.sample import VOCABULARY, Sample, Vocabulary, fits, load_vocabulary, read_jsonl, read_sharegpt
from models.errors import UsageError, UserError
from models.options import Count, NonNegative, Positive, option

NEED_FILE = ("jsonl", "sharegpt", *TRACES)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The requests to send."""

    dataset_name: str = option("builtin", "what to send", choices=lambda: ("builtin", "random", PROGRAMS, *NEED_FILE))
    dataset_path: Path | None = option(None, f"its file: for {', '.join(NEED_FILE)}")
    replay_lengths: bool | None = option(None)
    """have the server generate exactly the recorded lengths; it must run with --allow-replay (default: for traces)"""
    max_input_len: Count | None = option(None, "clip traces' and random prompts; leave longer texts out")
    max_output_len: Count | None = option(None, "clip answers; also max_tokens of each request")
    tokenizer: Path | None = option(None, "count tokens with the tokenizer.json there, else estimate", metavar="FOLDER")
    trace_start: NonNegative = option(0.0, "second of the trace to begin at")
    trace_duration: Positive = option(math.inf, "seconds of the trace to play (default: all)", infinite=True)
    trace_speed: Positive = option(1.0, "2 plays a trace in half its time")
    random_input_len: Count = option(1024, "mean tokens of random prompts")
    random_output_len: Count = option(128, "mean tokens of their answers")
    random_range_ratio: Annotated[float, Meta(ge=0, lt=1)] = option(0.0)
    """lengths are uniform in mean * [1 - ratio, 1 + ratio]"""
    random_vocab_size: Count | None = option(
        None, f"random token ids are below this (default: {VOCABULARY}, or --tokenizer)"
    )
    program_scale: Positive = option(1 / 32)
    """tokens of agents' runs, as a share of the published 142,000 of a prompt and 444 of an answer"""
    sharegpt_output_len: Count | None = option(None, "answer length for all of sharegpt (default: each one's own)")

    @property
    def file(self) -> Path:
        assert self.dataset_path is not None, "refused before"
        return self.dataset_path

    def cut(self, limit: int) -> Cut:
        played = self.trace_start, self.trace_duration, self.trace_speed
        return Cut(*played, self.max_input_len, self.max_output_len, limit)

    @property
    def replays(self) -> bool:
        return self.dataset_name in TRACES if self.replay_lengths is None else self.replay_lengths

    def refuse(self) -> None:
        """Raises UserError for contradictions."""
        if self.dataset_name in NEED_FILE and self.dataset_path is None:
            without = "or leave --dataset-name out: the built-in requests need none"
            raise UsageError(f"the dataset {self.dataset_name} needs a file: give --dataset-path FILE, {without}")
        if self.dataset_name not in NEED_FILE and self.dataset_path is not None:
            kinds = f"say which it is with --dataset-name ({', '.join(NEED_FILE)}), or leave --dataset-path out"
            raise UsageError(f"the dataset {self.dataset_name} does not read {self.dataset_path}: {kinds}")


LEAST_MODULES, REQUESTS_PER_MODULE = 16, 16  # of `builtin`

DRAWS_PER_REQUEST = 100  # bound of drawing short enough ones of `builtin`


def _builtin(asked: Workload, requests: int, vocabulary: Vocabulary, rng: random.Random) -> list[LoadPrompt]:
    material = tasks.read_material(rng, LEAST_MODULES + requests // REQUESTS_PER_MODULE)
    drawn = islice(tasks.samples(material, rng), DRAWS_PER_REQUEST * requests)
    prompts = [one.prompt(vocabulary.count) for one in islice(_short(drawn, asked, vocabulary), requests)]
    if len(prompts) < requests:
        raise UserError("the dataset builtin has hardly a request that is so short; raise --max-input-len")
    return prompts


def _short(samples: Iterable[Sample], asked: Workload, vocabulary: Vocabulary) -> Iterator[Sample]:
    longest = math.inf if asked.max_input_len is None else asked.max_input_len
    return (one for one in samples if one.input_length(vocabulary.count) <= longest)


def _jsonl(asked: Workload, requests: int, vocabulary: Vocabulary, rng: random.Random) -> list[LoadPrompt]:
    short = _short(read_jsonl(asked.file, need_reference=asked.replays), asked, vocabulary)
    return _draw([one.prompt(vocabulary.count) for one in short], asked, requests, rng)


def _sharegpt(asked: Workload, requests: int, vocabulary: Vocabulary, rng: random.Random) -> list[LoadPrompt]:
    fitting, count = [], vocabulary.count
    for sample in read_sharegpt(asked.file):
        length = asked.sharegpt_output_len or sample.output_length(count) or 0
        if fits(sample.input_length(count), clip(length, asked.max_output_len), asked.max_input_len):
            fitting.append(replace(sample.prompt(count), replay_tokens=length))
    return _draw(fitting, asked, requests, rng)


def _draw(prompts: Sequence[LoadPrompt], asked: Workload, requests: int, rng: random.Random) -> list[LoadPrompt]:
    if not prompts:
        raise UserError(f"{asked.file}: no request is within the bounds; raise --max-input-len")
    drawn: list[LoadPrompt] = []
    while len(drawn) < requests:
        drawn += rng.sample(prompts, len(prompts))
    return drawn[:requests]


def _random(asked: Workload, requests: int, vocabulary: Vocabulary, rng: random.Random) -> list[LoadPrompt]:
    ratio = asked.random_range_ratio

    def draw(mean: int, most: int | None) -> int:
        """Uniform in mean * [1 - ratio, 1 + ratio], as in `vllm bench serve`."""
        return clip(rng.randint(max(1, math.floor(mean * (1 - ratio))), max(1, math.ceil(mean * (1 + ratio)))), most)

    means = (asked.random_input_len, asked.max_input_len), (asked.random_output_len, asked.max_output_len)
    lengths = (RequestLengths(0.0, draw(*means[0]), draw(*means[1])) for _ in range(requests))
    return _of_tokens(lengths, asked, vocabulary, rng)


def _trace(asked: Workload, requests: int, vocabulary: Vocabulary, rng: random.Random) -> list[LoadPrompt]:
    return _of_tokens(load_trace(asked.file, asked.dataset_name, asked.cut(requests)), asked, vocabulary, rng)


def _of_tokens(
    lengths: Iterable[RequestLengths], asked: Workload, vocabulary: Vocabulary, rng: random.Random
) -> list[LoadPrompt]:
    ids, label = list(vocabulary.ids), asked.dataset_name
    rng.shuffle(ids)
    prompts = []
    for one in lengths:
        start = rng.randrange(len(ids))
        rounds = -(-(start + one.input_length) // len(ids))
        tokens = tuple((ids * rounds)[start : start + one.input_length])
        prompts.append(LoadPrompt(tokens=tokens, replay_tokens=one.output_length, arrival=one.arrival, label=label))
    return prompts


def _programs(asked: Workload, requests: int, vocabulary: Vocabulary, rng: random.Random) -> list[LoadPrompt]:
    from loadgen.workload.programs import draw_runs, write_prompts  # with numpy, which is slow to load

    seed, most = rng.randrange(2**32), asked.max_output_len
    turns = draw_runs(requests, 0.0, asked.program_scale, seed)
    clipped = (replace(one, output_length=clip(one.output_length, most)) for one in turns)
    return [*write_prompts(clipped, asked.max_input_len, seed)]


DATASETS: Mapping[str, Callable[[Workload, int, Vocabulary, random.Random], list[LoadPrompt]]] = {
    "builtin": _builtin,
    "random": _random,
    PROGRAMS: _programs,
    "jsonl": _jsonl,
    "sharegpt": _sharegpt,
} | dict.fromkeys(TRACES, _trace)


def join_turns(prompts: Sequence[LoadPrompt], turns: int) -> list[LoadPrompt]:
    """In order; the last may be shorter. Raises UserError."""
    if turns > 1 and not all(prompt.messages for prompt in prompts):
        raise UsageError("--turns: this workload's requests are not chat messages, so none can follow another")
    texts = ["\n\n".join(message["content"] for message in prompt.messages) for prompt in prompts]
    return [
        replace(prompts[place], follow_ups=tuple(texts[place + 1 : place + turns])) if turns > 1 else prompts[place]
        for place in range(0, len(prompts), turns)
    ]


IMPOSED = ("random", PROGRAMS, *TRACES)  # without a natural end


def load(workload: Workload, requests: int, seed: int) -> list[LoadPrompt]:
    """In order of sending; traces may hold fewer. Raises UserError."""
    workload.refuse()
    vocabulary = load_vocabulary(workload.tokenizer, workload.random_vocab_size)
    prompts = DATASETS[workload.dataset_name](workload, requests, vocabulary, random.Random(f"{seed}, part 0"))
    longest = max((max(prompt.replay_tokens or 0, *prompt.answers, 0) for prompt in prompts), default=0)
    bound = workload.max_output_len or longest or None
    return [_finished(prompt, workload, bound) for prompt in prompts]


def ignores_eos(workload: Workload) -> bool:
    """For random tokens, whose lengths max_tokens imposes."""
    return workload.dataset_name in IMPOSED and not workload.replays


def _finished(prompt: LoadPrompt, workload: Workload, bound: int | None) -> LoadPrompt:
    """Replayed ones share a bound, which reveals nothing."""
    length = None if prompt.replay_tokens is None else clip(prompt.replay_tokens, workload.max_output_len)
    if workload.replays:
        return replace(prompt, max_tokens=bound, replay_tokens=length)
    imposed = workload.dataset_name in (*IMPOSED, "sharegpt")
    return replace(prompt, max_tokens=length if imposed else bound, replay_tokens=None)
