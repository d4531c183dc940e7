"""The choices of a request about its answer: how tokens are chosen, when a row ends, and the grammar of its text.

Plain, frozen, torch-free data.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class GrammarKind(StrEnum):
    """In which language a grammar is written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that the whole text of an answer must match; engine.sampling.grammar compiles it."""

    kind: GrammarKind
    text: str
    lenient: bool = False
    """Whether keywords of a JSON schema that cannot be enforced are passed over, else they are an error."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one row are chosen and when the row ends.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 are off, as are penalties of 0 (presence,
    frequency) and 1 (repetition). Random numbers depend on `seed` and the row's own step only (design 1.4).
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    """How many alternatives to report beside each generated token; None reports nothing, 0 the token alone."""
    prompt_logprobs: int | None = None
    """How many alternatives to report beside each token of the prompt; None scores no prompt."""
    replay_tokens: int | None = None
    """Length to generate whatever the model says (design 3.1): for the row alone, no scheduling decision sees it."""
    stop_repetition: bool = False
    """Whether the row ends once it only repeats itself. A row with a grammar does not, since its text must match whole,
    nor one whose length is prescribed, by `replay_tokens`, `ignore_eos` or `min_tokens`."""
    grammar: Grammar | None = None
    """The grammar of the answer. When nothing may follow it the row ends, despite `min_tokens` and `ignore_eos`."""

    @property
    def penalizes(self) -> bool:
        """Whether the choice depends on which tokens came before."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
