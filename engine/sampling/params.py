"""How tokens are chosen, when a row ends, and its grammar: frozen and torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class GrammarKind(StrEnum):
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class Grammar:
    """Must match the whole text of an answer."""

    kind: GrammarKind
    text: str
    lenient: bool = False  # ignore JSON schema keywords that cannot be enforced


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """`temperature` 0 is greedy; `top_k` 0, `top_p` 1, `min_p` 0, presence and frequency penalty 0, repetition penalty
    1 are off. Random numbers depend on `seed` and the row's own step only.
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
    logprobs: int | None = None  # alternatives to each token; None: off, 0: the token alone
    prompt_logprobs: int | None = None  # the same for prompt tokens
    replay_tokens: int | None = None  # generate this many tokens, for replayed traces; no scheduling decision sees it
    stop_repetition: bool = False  # end a row that repeats itself; not with a grammar or a prescribed length
    grammar: Grammar | None = None  # once nothing may follow the row ends, despite `min_tokens` and `ignore_eos`

    @property
    def penalizes(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
