"""One request made of text, with the answer that it might get. Knows no file and no way to send it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadgen.client.prompt import Prompt
from loadgen.workload.tokens import Count


@dataclass(frozen=True, slots=True)
class Sample:
    """A request made of text, and how long its answer is."""

    label: str
    instruction: str
    """The task, sent as the system message; may be empty."""
    input: str
    """The user's own text."""
    reference: str = ""
    """A text whose length tells the answer's: the answer itself, or what it is a version of. Empty: not known."""
    stretch: float = 1.0
    """The answer's tokens per token of the reference."""

    def messages(self) -> tuple[Mapping[str, str], ...]:
        user = {"role": "user", "content": self.input or self.instruction}
        if not (self.input and self.instruction):
            return (user,)
        return ({"role": "system", "content": self.instruction}, user)

    def prompt(self, count: Count) -> Prompt:
        """The request, its answer's length in `replay_tokens`."""
        return Prompt(messages=self.messages(), label=self.label, replay_tokens=self.output_length(count))

    def input_length(self, count: Count) -> int:
        """Tokens of instruction and input; the chat template adds some."""
        return count(self.instruction) + count(self.input)

    def output_length(self, count: Count) -> int | None:
        """Tokens of the answer, the end token included (G(p) of the design); None where it is not known."""
        return round(count(self.reference) * self.stretch) + 1 if self.reference else None
