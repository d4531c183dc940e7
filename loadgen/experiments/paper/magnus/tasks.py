"""The requests of Magnus's own tasks, read from files, and how well their prompts tell their answers' lengths."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from statistics import correlation
from types import MappingProxyType

from loadgen.experiments.paper.load import LONGEST, Pool, fitted
from loadgen.experiments.paper.plan import Plan
from loadgen.experiments.paper.row import Published, Row, skip
from loadgen.experiments.paper.stage import Stage
from loadgen.workload.jsonl import read_jsonl
from loadgen.workload.lengths import Lengths, clip
from loadgen.workload.sample import Sample
from loadgen.workload.tokens import estimate
from models.errors import UserError

COMMENTED = "commented code"
"""Words of an instruction that asks for the code with a comment in it; the reference is the comment alone."""

PEARSON: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "MT": (0.962, 0.996),
        "GC": (0.981, 0.991),
        "TD": (0.778, 0.853),
        "CT": (0.990, 0.996),
        "BF": (0.992, 0.995),
        "CC": (0.768, 0.809),
    }
)
"""Table I, by application: correlation of user input and generation length, the least and most of three models."""


def read_pool(folder: Path, answers: str, seed: int, input_scale: float = 1.0) -> Pool:
    """Requests of the task files (`*.jsonl`) in a folder, as many of each task, in random order. Raises UserError.

    `answers` says what answers an instruction that asks for commented code: `code` or `reference`.
    """
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise UserError(f"--tasks: {folder} has no file *.jsonl")
    rng = random.Random(f"{seed}, tasks")
    tasks = [read_jsonl(file, need_reference=True) for file in files]
    most = min(len(one) for one in tasks)
    samples = [sample for one in tasks for sample in rng.sample(one, most)]
    rng.shuffle(samples)
    lengths = [_lengths(sample, answers) for sample in samples]
    source = f"lengths of the task files {', '.join(file.stem for file in files)}, {most} requests of each, answers "
    source += "that should be commented code being the " + ("code and its comment" if answers == "code" else "comment")
    return fitted(lengths, input_scale, source, LONGEST, tuple(samples))


def _lengths(sample: Sample, answers: str) -> Lengths:
    output = sample.output_length(estimate) or 1
    if answers == "code" and COMMENTED in sample.instruction:
        output += estimate(sample.input)
    return Lengths(0.0, max(1, sample.input_length(estimate)), clip(output, LONGEST))


def correlations(stage: Stage) -> Plan:
    """Table I, whose correlations Figure 2 draws."""
    rows = _pearson_rows(stage.pool) or [skip("all of it", "the requests have no texts: give --tasks FOLDER")]
    setting = "lengths in tokens, estimated; answers are references, where the paper has those of three models"
    return Plan("Magnus: Table I and Fig. 2", setting, (), (), lambda lines: (), rows)


def _pearson_rows(pool: Pool) -> list[Row]:
    pairs: dict[str, list[tuple[int, int]]] = {}
    for sample, lengths in zip(pool.samples, pool.lengths, strict=False):
        application = sample.label.partition("_")[0].upper()
        pairs.setdefault(application, []).append((estimate(sample.input), lengths.output_length))
    return [
        Published(low, high, "", "I, Table I").beside(
            f"{name}: Pearson of user input and answer, {len(pairs[name])} requests",
            {name: correlation(*zip(*pairs[name], strict=True))},
        )
        for name, (low, high) in PEARSON.items()
        if name in pairs
    ]
