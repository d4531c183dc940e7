"""An example of each command, in groups: for the program's own help and for the command's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        "Serve and talk": (
            ("run", "serve the default model and talk to it, in one"),
            ("serve --port 8000", "serve the default model"),
            ("chat", "talk to that server"),
            ("doctor", "tell what would keep the server from starting"),
            ("models", "list the models that can be served by name, and their memory"),
            ("models pull smollm2-135m-instruct", "fetch a model; `models rm` deletes it"),
            ("systemd print", "print a systemd unit"),
            ("gateway --backend http://127.0.0.1:8001/v1", "queue calls before a server that runs already"),
            ("ray -- smollm2-135m-instruct", "serve from several machines behind Ray Serve"),
            ("completion bash", "complete commands and flags in bash, zsh or fish"),
            ("openapi", "print the API as an OpenAPI document"),
        ),
        "Learn from this machine and what was served": (
            ("profile --quick", "measure this machine for the scheduler"),
            ("train", "train the length predictor from the journal"),
            ("journal show -n 5", "print the newest five requests"),
            ("whatif", "tell what would have served the journal's requests better"),
        ),
        "Measure and compare": (
            ("bench --num-prompts 50 --request-rate 2", "measure a running server"),
            ("compare --strategies baton-pd,lengthwise", "compare two strategies on this machine"),
            ("simulate --strategies vs,scls --rate 10", "compare two strategies without a machine"),
            ("paper scls", "simulate a paper's experiments, beside what was published"),
            ("arena", "let all strategies serve many loads on many simulated machines"),
            ("strategy new my_order", "begin a strategy of your own"),
        ),
    }
)
"""(command line, what it does), by the group's title."""


def write_overview() -> str:
    """All examples, below the titles of their groups."""
    groups = (
        f"{title}:\n" + "".join(f"  lengthwise {line:<44} {what}\n" for line, what in examples)
        for title, examples in EXAMPLES.items()
    )
    return "\n".join(groups) + "\n`lengthwise COMMAND --help` explains a command.\n"


def write_example(command: str) -> str | None:
    """The example of one command; None where it has none."""
    lines = [line for examples in EXAMPLES.values() for line, _ in examples]
    return next((f"Example: lengthwise {line}" for line in lines if line.split()[0] == command), None)
