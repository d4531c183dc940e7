"""The commands `lengthwise bench engine`, `gpu` and `grid`, `paper` and `arena`; heavy imports happen when one runs."""

from loadgen.experiments.options import Arena, EngineBench, Experiments, GpuBench, Grid
from models.options import Subparsers, add_command


def add_benchmarks(subparsers: Subparsers) -> None:
    add_command(subparsers, "engine", EngineBench, run_engine).set_defaults(computes=True)
    add_command(subparsers, "gpu", GpuBench, run_gpu).set_defaults(computes=True)
    add_command(subparsers, "grid", Grid, run_grid)


def add_commands(subparsers: Subparsers) -> None:
    add_command(subparsers, "paper", Experiments, run_paper)
    add_command(subparsers, "arena", Arena, run_arena)


def run_engine(asked: EngineBench) -> int:
    """Compare this engine with transformers, in one process.

    In interleaved rounds: this engine, transformers' generate on a static batch of the same prompts, and the least that
    memory bandwidth allows. Nothing else should run on the machine meanwhile.
    """
    from loadgen.experiments.engine.bench import run_engine

    return run_engine(asked)


def run_gpu(asked: GpuBench) -> int:
    """Find out what this engine does on a GPU, in some minutes and without a download.

    On random weights, of an 8B's size if memory allows: whether graphs, flash attention and masks give the same
    tokens, what a decode step takes to the floor of memory bandwidth, prefill, and transformers' generate.
    Without a GPU a tiny dry run. Exits with 1 where a part failed.
    """
    from loadgen.experiments.engine.gpu import run_gpu

    return run_gpu(asked)


def run_grid(asked: Grid) -> int:
    """Compare orders of waiting requests in the simulator, on many machines and loads.

    Simulates each order on each machine with each load, from below to far above what is served, and with good, bad and
    misleading predictions, and prints by how much it differs from first come, first served, by whether requests wait. A
    run that was broken off goes on where it was.
    """
    from loadgen.experiments.grid.run import run_grid

    return run_grid(asked)


def run_arena(asked: Arena) -> int:
    """Compare all strategies in the simulator.

    Simulates every strategy on the same loads, where few come and where too many do, with good and with misleading
    predictions, and prints completion times, times to the first token, normalized latencies (completion time by tokens
    of the answer), slowdowns, throughput, longest waits and fairness.

    Example: lengthwise arena
    """
    from loadgen.experiments.grid.run import run_arena

    return run_arena(asked)


def run_paper(asked: Experiments) -> int:
    """Repeat a paper's experiments in the simulator.

    Runs the main comparison and the ablation of a paper from strategies by name, at the paper's scale on simulated
    executors, and prints what was measured beside what the paper says, row by row. Ctrl-C leaves the tables and the
    file of what ran until then.

    Example: lengthwise paper scls
    """
    from loadgen.experiments.paper.run import run_paper

    return run_paper(asked)
