"""The lines that `lengthwise serve` prints once it is ready: where, what, how much room, how fast, and what to try."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.messages import ExecutorInfo
from server.http.service import Machine, Service

TYPICAL_TOKENS = 512
"""Tokens before the next one of a row for which a speed is told."""


def summarize(service: Service, address: str, seconds: float) -> str:
    """Several lines, of which the first is the one that scripts wait for."""
    return "\n".join(_lines(service, address, seconds))


def _lines(service: Service, address: str, seconds: float) -> Iterator[str]:
    executors = "1 executor" if service.executors == 1 else f"{service.executors} executors"
    yield f"Lengthwise ready on {address} ({service.name}, {executors}, {seconds:.1f} s)"
    if (machine := service.machine) is not None:
        infos = [worker.info for worker in service.dispatcher.workers]
        yield f"  weights   {_weights(machine)}"
        yield f"  room      {_room(infos, service.model.context_length)}"
        yield f"  speed     {_speed(machine, infos[0].max_rows)}"
    if address.startswith("http"):
        yield f"  open {address} or run: lengthwise chat{'' if address.endswith(':8000') else f' --url {address}'}"


def _weights(machine: Machine) -> str:
    conditions = machine.conditions
    kept = "" if conditions.quantization == "none" else f", kept as {conditions.quantization}"
    threads = f", {conditions.threads} thread{'s' * (conditions.threads > 1)}" if conditions.threads else ""
    return f"{conditions.dtype}{kept}, on {conditions.device}{threads}"


def _room(infos: Sequence[ExecutorInfo], context: int) -> str:
    slots, tokens = sum(info.max_rows for info in infos), sum(info.capacity_tokens for info in infos)
    return f"{slots} slots, {tokens:,} tokens of K and V; a request may take {context:,}"


def _speed(machine: Machine, slots: int) -> str:
    """Tokens a second of decode steps by the learned prices, alone and with every slot of one executor taken."""
    if machine.prices is None:
        return "not known yet; it is learned from what is served"
    alone, full = (rows / machine.prices.iteration(rows, TYPICAL_TOKENS) for rows in (1, slots))
    return f"about {alone:.0f} tokens/s for one request, {full:.0f} for {slots} together, as served here before"
