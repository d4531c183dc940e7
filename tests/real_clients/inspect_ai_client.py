"""Run by `inspect eval`: three questions, at each of which a tool is called in three turns."""

from __future__ import annotations

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool


@tool
def weather():
    async def execute(city: str) -> str:
        """Tells it.

        Args:
            city: Its name.
        """
        return f"20 degrees in {city}"

    return execute


@task
def cities():
    samples = [
        Sample(f"How warm is it in {city}, Wien and Linz?", target="are read") for city in ("Graz", "Bruck", "Leoben")
    ]
    return Task(dataset=samples, solver=[use_tools(weather()), generate()], scorer=includes())
