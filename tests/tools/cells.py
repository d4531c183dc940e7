"""The papers' headline cells on the engine, measured by `lengthwise compare`.

    python -m tests.tools.cells prepare FOLDER TASKS CHAT TRACE  a model of two layers, and requests in FOLDER/inputs
    python -m tests.tools.cells commands FOLDER [NAME...]        a line a cell, for a shell; each writes FOLDER/NAME
    python -m tests.tools.cells collect FOLDER                   engine.json and papers.md's columns, of what ran

TASKS has Magnus's task files, CHAT alpaca.jsonl, and TRACE is Azure's conversation trace. SSJF's predictor is trained
by `lengthwise train` on FOLDER/inputs/train.jsonl, the half of CHAT that is not sent (docs/research/papers.md).
"""

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import join
from typing import Any

from loadgen.compare.record import find_change
from loadgen.experiments.paper.baton import TARGET_1, draw_lengths
from loadgen.experiments.paper.load import trace_pool
from loadgen.experiments.paper.magnus import read_pool
from loadgen.experiments.paper.row import round_figure
from loadgen.experiments.paper.scls import INPUT_SCALE
from loadgen.workload.lengths import RequestLengths
from loadgen.workload.sample import estimate, read_jsonl
from tests.tiny import build

PAGE = Path(__file__).parents[2] / "docs" / "research" / "papers.md"
KEPT = PAGE.with_name("papers") / "engine.json"
COUNT = 1500
"""Requests of a file of lengths at most."""
LONGEST = 512
"""Tokens that SSJF's answers have less than (4.3, note on data processing)."""
FIGURES = ("request_throughput", "mean_jct_ms", "p95_jct_ms", "server_mean_batch_rows")
LESS = frozenset({"mean_jct_ms", "p95_jct_ms"})
"""Figures of which less is a gain."""

AT_ONCE = "all at once"
LAYERS = ("tiny", "--random-vocab-size 320", "--dtype float32 --no-journal")
SMOLLM2 = ("smollm2-135m-instruct", "", "--no-journal")
"""A model, what its requests need, and what its server does."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A comparison: its model, the file of requests, their number, and flags of `compare` and of `serve`."""

    model: tuple[str, str, str]
    file: str
    load: str
    strategies: str
    serve: str

    def command(self, folder: Path, name: str) -> str:
        """The command line; without the folder's name it says all that decides the figures."""
        model, random, serve = self.model
        kind = "jsonl --replay-lengths --max-input-len 60" if self.file == "chat" else "mooncake"
        inputs = folder / "inputs"
        path = str(inputs / "tiny") if model == "tiny" else model
        where = [path, "--dataset-path", str(inputs / f"{self.file}.jsonl")]
        words = f"{random} --dataset-name {kind} {self.load} --strategies {self.strategies}".split()
        further = f"--serve-args={serve} {self.serve}"
        return join(["lengthwise", "compare", *where, *words, further, "--output", str(folder / name)])


def _ssjf(model: tuple[str, str, str], mode: str, load: str, orders: str) -> Cell:
    strategies = ",".join(f"{order}-{mode}" for order in orders.split(","))
    return Cell(model, "chat", load, strategies, "--max-num-seqs 4")


def _scls(model: tuple[str, str, str], file: str, load: str, longest: int, memory: str, part: int) -> Cell:
    served = f"--executors 2 --max-model-len {longest} --kv-cache-memory {memory} --max-num-seqs 64"
    batches = f"--max-batch-size 16 --slice-length {part} --recompute"
    return Cell(model, file, load, "sls,ils,ils-padded,scls", f"{served} {batches}")


def _baton(model: tuple[str, str, str], file: str, load: str) -> Cell:
    return Cell(model, file, load, "fcfs-dynamic,pd,baton,baton-pd", "--max-num-seqs 8")


ALL = "--request-rates inf"
BURSTS = "--num-prompts 50 --rounds 20 --burstinesses 1,0.0625 --request-rates"
"""CV 1 and 4 of the gaps, beside all at once."""
CELLS: Mapping[str, Cell] = {
    "magnus-tiny": Cell(
        LAYERS,
        "magnus",
        "--num-prompts 1000 --request-rates 200",
        "vs,vsq,ccb,ccb-padded,glp,abp,magnus",
        "--max-model-len 2048 --kv-cache-memory 0.003418 --max-num-seqs 64 --length-predictor oracle",
    ),
    "scls-tiny": _scls(LAYERS, "scls-4", "--num-prompts 1000 --rounds 6 --request-rates 1100", 512, "0.003536", 32),
    "ssjf-none-tiny": _ssjf(LAYERS, "none", f"{BURSTS} 35,inf", "fcfs,sjf-oracle"),
    "ssjf-dynamic-tiny": _ssjf(LAYERS, "dynamic", f"{BURSTS} 55,inf", "fcfs,sjf-oracle"),
    "ssjf-continuous-tiny": _ssjf(LAYERS, "continuous", f"{BURSTS} 80,inf", "fcfs,sjf-oracle"),
    "baton-tiny": _baton(LAYERS, "baton-8", f"--num-prompts 120 --rounds 9 {ALL}"),
    "ssjf-continuous-smollm2": _ssjf(SMOLLM2, "continuous", f"--num-prompts 100 {ALL}", "fcfs,ssjf,sjf-oracle"),
    "magnus-smollm2": Cell(
        SMOLLM2,
        "magnus-8",
        "--num-prompts 300 --request-rates 200",
        "vs,ccb,ccb-padded,magnus",
        "--max-model-len 256 --kv-cache-memory 0.03846 --max-num-seqs 64 --length-predictor oracle --wma-threshold 781",
    ),
    "scls-smollm2": _scls(SMOLLM2, "scls-16", "--num-prompts 300 --rounds 5 --request-rates 300", 128, "0.0797", 8),
    "baton-smollm2": _baton(SMOLLM2, "baton-32", f"--num-prompts 120 {ALL}"),
    "ssjf-dynamic-smollm2": _ssjf(SMOLLM2, "dynamic", f"--num-prompts 100 {ALL}", "fcfs,ssjf,sjf-oracle"),
    "ssjf-none-smollm2": _ssjf(SMOLLM2, "none", f"--num-prompts 50 --rounds 6 {ALL}", "fcfs,ssjf,sjf-oracle"),
}
"""The cells by importance. Memory is the papers', by the factor of the lengths: seven rows of 2 x 1,024 tokens for
Magnus, 59,326 tokens for each executor of SCLS; so are slices (128) and Φ (50,000, by its square)."""


def prepare(folder: Path, tasks: Path, chat: Path, trace: Path) -> None:
    """Write the model and the requests."""
    inputs = folder / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    build(inputs / "tiny", context=2048)
    magnus = read_pool(tasks, "code", 0).lengths
    scls = trace_pool(trace, input_scale=INPUT_SCALE).lengths
    baton = [RequestLengths(0.0, *one) for one in draw_lengths(TARGET_1, TARGET_1.queries, 0)]
    for name, lengths, parts in (("magnus", magnus, (1, 8)), ("scls", scls, (4, 16)), ("baton", baton, (8, 32))):
        for part in parts:
            file = inputs / (f"{name}.jsonl" if part == 1 else f"{name}-{part}.jsonl")
            _write(file, (_scaled(one, place, part) for place, one in enumerate(lengths[:COUNT])))
    rows = [
        {"instruction": one.instruction, "input": one.input, "reference": one.reference, "length": length}
        for one in read_jsonl(chat / "alpaca.jsonl", need_reference=False)
        if 0 < (length := one.output_length(estimate) or 0) < LONGEST
    ]
    _write(inputs / "chat.jsonl", rows[::2])
    _write(inputs / "train.jsonl", rows[1::2])


def _scaled(one: RequestLengths, place: int, part: int) -> dict[str, int]:
    lengths = {"input_length": one.input_length, "output_length": one.output_length}
    return {"timestamp": place, **{name: max(1, round(length / part)) for name, length in lengths.items()}}


def _write(file: Path, rows: Iterable[Mapping[str, object]]) -> None:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")


def collect(folder: Path, kept: Path = KEPT, page: Path = PAGE) -> None:
    """Put the figures of each cell that ran in place of those that the file has, and the file's into the page."""
    found = json.loads(kept.read_text("utf-8")) if kept.exists() else {}
    for name in CELLS:
        if (report := folder / name / "report.json").exists():
            try:
                found[name] = read_report(json.loads(report.read_text("utf-8")), CELLS[name].command(Path(), name))
            except ValueError as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
    ordered = {name: found[name] for name in CELLS if name in found}
    lines = (f'"{name}":{json.dumps(one, ensure_ascii=False)}' for name, one in ordered.items())
    kept.write_text("{" + ",\n".join(lines).replace('{"strategy"', '\n{"strategy"') + "}\n", "utf-8")
    page.write_text(fill(page.read_text("utf-8"), ordered), "utf-8")


def read_report(report: Mapping[str, Any], command: str) -> dict[str, object]:
    """What is kept of a report: a run's figures in each round. Raises ValueError where a request was not answered."""
    lost = [one for one in report["plays"] if one["failed"] or one["rejected"] or one.get("interrupted")]
    if lost or report["troubles"] or report["interrupted"]:
        raise ValueError(f"{command}: not all requests were answered")
    runs: dict[tuple[str, str], dict[str, Any]] = {}
    for play in report["plays"]:
        rate, burstiness = float(play["request_rate"]), float(play["burstiness"])
        point = AT_ONCE if rate == math.inf else f"{rate:g}/s, CV {burstiness**-0.5:g}"
        named = {"strategy": play["contestant"], "point": point}
        run = runs.setdefault((play["contestant"], point), {**named, "rounds": {}})
        for figure in FIGURES:
            run["rounds"].setdefault(figure, []).append(round_figure(play[figure]))
    if any(len(values) != report["rounds"] for run in runs.values() for values in run["rounds"].values()):
        raise ValueError(f"{command}: it has not ended")
    told = {"command": command, "date": report["date"], "processor": report["machine"]["processor"]}
    return {**told, "requests": report["flags"]["num_prompts"], "rounds": report["rounds"], "runs": list(runs.values())}


@dataclass(frozen=True, slots=True)
class Gain:
    """By how much a strategy is better than another, and the 95 % interval of that."""

    typical: float
    low: float
    high: float

    @property
    def percent(self) -> str:
        """In percent."""
        return "{:.0f} ({:.0f} to {:.0f})".format(*(100 * one for one in (self.typical, self.low, self.high)))

    @property
    def times(self) -> str:
        """As a factor."""
        return "{:.2f} ({:.2f} to {:.2f})".format(*(1 + one for one in (self.typical, self.low, self.high)))


def find_gain(cell: Mapping[str, Any], new: str, old: str, figure: str, point: str) -> Gain | None:
    """The gain over rounds at a load; by less time, by more of all else. None where one of the two did not run."""
    rounds = {one["strategy"]: one["rounds"][figure] for one in cell["runs"] if one["point"] == point}
    if not {new, old} <= rounds.keys():
        return None
    change = find_change(list(zip(rounds[new], rounds[old], strict=True)))
    if figure in LESS:
        return Gain(-change.typical, -change.high, -change.low)
    return Gain(change.typical, change.low, change.high)


Query = tuple[str, str, str, str, str]
"""A cell's name without its model, the two strategies, the figure, and the end of the load's name."""
OFTEN, JCT, TAIL, ROWS = FIGURES


def _pairs(cell: str, point: str, *pairs: tuple[str, str, Sequence[str]]) -> list[list[Query]]:
    return [[(cell, new, old, figure, point)] for new, old, figures in pairs for figure in figures]


def _modes(order: str, point: str) -> list[Query]:
    return [(f"ssjf-{mode}", f"{order}-{mode}", f"fcfs-{mode}", JCT, point) for mode in MODES]


MODES = ("none", "dynamic", "continuous")
MODELS = {"tiny": "two layers", "smollm2": "SmolLM2"}
"""How a cell's name ends, and the head of the column."""
TABLES: Mapping[str, Sequence[Sequence[Query]]] = {
    "`magnus`, in %": [
        *_pairs("magnus", "/s, CV 1", ("magnus", "vs", (OFTEN, JCT, TAIL))),
        [],
        *_pairs(
            "magnus",
            "/s, CV 1",
            *((("magnus", old, (OFTEN, JCT))) for old in ("vsq", "ccb", "ccb-padded")),
            ("glp", "vs", (OFTEN,)),
            ("abp", "glp", (OFTEN, JCT)),
            ("magnus", "abp", (JCT,)),
        ),
    ],
    "`scls`, in %": [
        *_pairs("scls", "/s, CV 1", ("scls", "sls", (OFTEN, JCT, TAIL, ROWS))),
        *([] for _ in range(4)),
        *_pairs("scls", "/s, CV 1", *(("scls", old, (OFTEN, JCT)) for old in ("ils", "ils-padded"))),
        [],
    ],
    "none, dynamic, continuous": [
        _modes("ssjf", AT_ONCE),
        _modes("sjf-oracle", AT_ONCE),
        *([] for _ in range(3)),
        _modes("sjf-oracle", "/s, CV 1"),
        _modes("sjf-oracle", "/s, CV 4"),
        *([] for _ in range(2)),
    ],
    "speed-up": [
        *_pairs("baton", AT_ONCE, *((new, "fcfs-dynamic", (OFTEN,)) for new in ("baton-pd", "baton", "pd"))),
        *_pairs("baton", AT_ONCE, ("baton-pd", "baton", (OFTEN,))),
        [],
    ],
}
"""papers.md's tables by their first heads: what the columns of the two models hold in each row, nothing where no cell
has it."""


def tell(queries: Sequence[Query], model: str, kept: Mapping[str, Any], times: bool) -> str:
    """A place of a table: gains with their intervals, a dash for one that is not known; empty where none is."""
    told = []
    for cell, new, old, figure, load in queries:
        found = kept.get(f"{cell}-{model}", {"runs": []})
        point = next((one["point"] for one in found["runs"] if one["point"].endswith(load)), "")
        gain = find_gain(found, new, old, figure, point)
        told.append("-" if gain is None else gain.times if times else gain.percent)
    return ", ".join(told) if any(one != "-" for one in told) else ""


def fill(page: str, kept: Mapping[str, Any]) -> str:
    """The page with the columns of both models as the file has them; those of which it has no cell stay."""
    lines = page.splitlines()
    for head, rows in TABLES.items():
        begin = next(place for place, line in enumerate(lines) if line.startswith(f"| {head} |"))
        heads = [one.strip() for one in lines[begin].strip("|").split("|")]
        names = {query[0] for queries in rows for query in queries}
        ran = [model for model in MODELS if any(f"{name}-{model}" in kept for name in names)]
        for place, queries in enumerate(rows, begin + 2):
            cells = [one.strip() for one in lines[place].removeprefix("|").removesuffix("|").split("|")]
            for model in ran:
                cells[heads.index(MODELS[model])] = tell(queries, model, kept, head == "speed-up")
            lines[place] = f"| {' | '.join(cells)} |"
    return re.sub(r"\|  (?=\|)", "| ", "\n".join(lines)) + "\n"


def main(arguments: list[str]) -> None:
    what, folder, *further = arguments
    if what == "prepare":
        prepare(Path(folder), *map(Path, further))
    elif what == "commands":
        print("\n".join(CELLS[name].command(Path(folder), name) for name in further or CELLS))
    else:
        collect(Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
