"""A program: calls of one key whose prompts extend each other, or that name their run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Program:
    """Compared by identity; times are the clock's."""

    name: str
    kind: str  # key and system prompt, hashed
    arrival: float
    turns: int = 0  # calls begun
