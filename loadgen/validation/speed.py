"""How much slower than its profile a machine was during a run, told from how long its executors were at work."""

from __future__ import annotations

from collections.abc import Callable

from loadgen.simulation import Simulation

ROUNDS = 5
"""Trials; each comes closer, since slower executors have fuller batches and do more at a time."""


def at_speed_of(busy: float, simulate: Callable[[float], Simulation]) -> tuple[float, Simulation]:
    """The slowdown with which simulated executors work `busy` seconds, and the simulation with it.

    `simulate` is given a slowdown; 1 is the profile's speed.
    """
    slowdown, found = 1.0, simulate(1.0)
    for _ in range(ROUNDS):
        slowdown *= busy / work(found)
        found = simulate(slowdown)
    return slowdown, found


def work(simulation: Simulation) -> float:
    """Seconds that all executors spent on prompts and iterations."""
    return sum(worker.prefill + worker.decode for worker in simulation.workers)
