"""The load of a simulation: lengths at a trace's or random times, cut to what executors hold."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from loadgen.client.request import PROGRAMS, LoadPrompt
from loadgen.load import arrival_times
from loadgen.simulate.flags import LoadFlags
from loadgen.workload import requests as workload
from loadgen.workload.lengths import TRACES, RequestLengths, load_trace
from loadgen.workload.programs import draw_runs
from loadgen.workload.sample import Count, load_vocabulary
from models.errors import UsageError, UserError
from scheduler.programs.recognizer import Recognizer, Signs

RATE = 20.0  # requests/s by default: SCLS's

OWN_TIMES = 1_000_000  # requests at most at a trace's own times


def simulated_load(flags: LoadFlags) -> list[RequestLengths]:
    """In order of arrival: rate x duration requests, or as many as a trace has; at its own times, `duration` seconds
    of it. Raises UserError.
    """
    if flags.dataset_name == PROGRAMS:
        raise UsageError(f"--dataset-name {PROGRAMS}: simulate plays agents' runs with --programs N")
    runs = draw_runs(flags.programs, flags.duration, flags.program_scale, flags.seed)
    timed = flags.rate is None and is_timed(flags)
    if runs and flags.rate is None and not timed:
        return runs
    rate = flags.rate or RATE
    requests = _lengths(flags, OWN_TIMES if timed else max(1, round(rate * flags.duration)), flags.seed)
    if timed:
        requests = [one for one in requests if one.arrival < flags.duration]
    else:
        requests = draw_arrivals(requests, rate, flags.burstiness, flags.seed)
    return [*runs, *(chain_turns(requests) if flags.follow_turns else requests)]


def chain_turns(requests: Sequence[RequestLengths]) -> list[RequestLengths]:
    """A trace's in order of arrival, by the turn before that it names, else by its blocks."""
    recognizer, chats, last = Recognizer(len(requests)), dict[str, str](), dict[str, float]()
    found = []
    for place, one in enumerate(requests):
        chain = [repr(one.blocks[:end]).encode() for end in range(1, len(one.blocks))]  # the last is no whole block
        run = chats.get(one.parent) or (recognizer.recognize("", Signs(chain=chain), 0.0).name if chain else str(place))
        chats[one.chat] = run if one.chat else ""
        found.append(replace(one, run=run, pause=one.arrival - last.get(run, one.arrival)))
        last[run] = one.arrival
    return found


def draw_arrivals(lengths: Sequence[RequestLengths], rate: float, burstiness: float, seed: int) -> list[RequestLengths]:
    times = arrival_times(rate, burstiness, len(lengths), np.random.default_rng(seed))
    return [replace(one, arrival=float(time)) for one, time in zip(lengths, times, strict=True)]


def task_lengths(count: int, seed: int, longest: int) -> list[RequestLengths]:
    """Built-in tasks, prompts and answers of at most `longest` tokens."""
    return _lengths(workload.Workload(max_input_len=longest, max_output_len=longest), count, seed)


def fit_load(requests: Sequence[RequestLengths], longest: int) -> tuple[list[RequestLengths], int, int]:
    """Cut to `longest` tokens as `--max-model-len` does: requests, answers cut, and prompts left out. Raises UserError
    when none is left.
    """
    kept = [one for one in requests if one.input_length < longest]
    if requests and not kept:
        raise UserError(f"no prompt is shorter than {longest} tokens: raise --max-model-len and --capacity-tokens")
    short = [replace(one, output_length=min(one.output_length, longest - one.input_length)) for one in kept]
    return short, sum(one != other for one, other in zip(kept, short, strict=True)), len(requests) - len(kept)


def is_timed(asked: workload.Workload) -> bool:
    """Whether every request has its own time."""
    return asked.dataset_name in TRACES


def _lengths(asked: workload.Workload, requests: int, seed: int) -> list[RequestLengths]:
    asked.refuse()
    if is_timed(asked):  # no prompts are needed
        return load_trace(asked.file, asked.dataset_name, asked.cut(requests))
    count = load_vocabulary(asked.tokenizer, asked.random_vocab_size).count
    # a simulation must know lengths
    return [_length(prompt, count) for prompt in workload.load(replace(asked, replay_lengths=True), requests, seed)]


def _length(prompt: LoadPrompt, count: Count) -> RequestLengths:
    read = len(prompt.tokens) or sum(count(message["content"]) for message in prompt.messages)
    return RequestLengths(prompt.arrival, max(1, read), prompt.replay_tokens or prompt.max_tokens or 1)
