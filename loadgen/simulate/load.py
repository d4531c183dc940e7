"""The load of a simulation: lengths at a trace's or random times, cut to what executors hold."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from loadgen.client.request import PROGRAMS, LoadPrompt
from loadgen.load import arrival_times
from loadgen.simulate.flags import LoadFlags
from loadgen.workload.lengths import TRACES, RequestLengths, load_trace
from loadgen.workload.programs import draw_runs
from loadgen.workload.requests import Workload
from loadgen.workload.requests import load as load_requests
from loadgen.workload.sample import Count, load_vocabulary
from models.errors import UserError
from scheduler.programs.recognizer import Recognizer, Signs

RATE = 20.0  # requests/s by default: SCLS's

OWN_TIMES = 1_000_000  # requests at most at a trace's own times


def simulated_load(flags: LoadFlags) -> list[RequestLengths]:
    """In order of arrival: rate x duration requests, or as many as a trace has; at its own times, `duration` seconds
    of it. Raises UserError.
    """
    if flags.dataset_name == PROGRAMS:
        raise UserError(f"--dataset-name {PROGRAMS}: simulate plays agents' runs with --programs N")
    runs = draw_runs(flags.programs, flags.duration, flags.program_scale, flags.seed)
    timed = flags.rate is None and is_timed(flags)
    if runs and flags.rate is None and not timed:
        return runs
    requests = _draw_requests(flags, timed)
    return [*runs, *(chain_turns(requests) if flags.follow_turns else requests)]


def _draw_requests(flags: LoadFlags, timed: bool) -> list[RequestLengths]:
    rate = RATE if flags.rate is None else flags.rate
    count = OWN_TIMES if timed else max(1, round(rate * flags.duration))
    requests = _lengths(flags, count, flags.seed)
    if timed:
        return [one for one in requests if one.arrival < flags.duration]
    return draw_arrivals(requests, rate, flags.burstiness, flags.seed)


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


def draw_arrivals(
    requests: Sequence[RequestLengths], rate: float, burstiness: float, seed: int
) -> list[RequestLengths]:
    times = arrival_times(rate, burstiness, len(requests), np.random.default_rng(seed))
    return [replace(one, arrival=float(time)) for one, time in zip(requests, times, strict=True)]


def task_lengths(count: int, seed: int, longest: int) -> list[RequestLengths]:
    """Built-in tasks, prompts and answers of at most `longest` tokens."""
    workload = Workload(max_input_len=longest, max_output_len=longest)
    return _lengths(workload, count, seed)


def fit_load(requests: Sequence[RequestLengths], longest: int) -> tuple[list[RequestLengths], int, int]:
    """Cut to `longest` tokens as `--max-model-len` does: requests, answers cut, and prompts left out. Raises UserError
    when none is left.
    """
    kept = [one for one in requests if one.input_length < longest]
    if requests and not kept:
        raise UserError(f"no prompt is shorter than {longest} tokens: raise --max-model-len and --capacity-tokens")
    short = [replace(one, output_length=min(one.output_length, longest - one.input_length)) for one in kept]
    cut = sum(one != other for one, other in zip(kept, short, strict=True))
    return short, cut, len(requests) - len(kept)


def is_timed(workload: Workload) -> bool:
    """Whether every request has its own time."""
    return workload.dataset_name in TRACES


def _lengths(workload: Workload, requests: int, seed: int) -> list[RequestLengths]:
    workload.refuse()
    if is_timed(workload):  # no prompts are needed
        return load_trace(workload.file, workload.dataset_name, workload.cut(requests))
    count = load_vocabulary(workload.tokenizer, workload.random_vocab_size).count
    # a simulation must know lengths
    known = replace(workload, replay_lengths=True)
    return [_length(prompt, count) for prompt in load_requests(known, requests, seed)]


def _length(prompt: LoadPrompt, count: Count) -> RequestLengths:
    read = len(prompt.tokens) or sum(count(message["content"]) for message in prompt.messages)
    return RequestLengths(prompt.arrival, max(1, read), prompt.replay_tokens or prompt.max_tokens or 1)
