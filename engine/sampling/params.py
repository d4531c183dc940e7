"""How tokens are chosen, and rows end; torch-free."""

from dataclasses import dataclass, field
from enum import StrEnum


class GrammarKind(StrEnum):
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class Grammar:
    """Matches the whole answer."""

    kind: GrammarKind
    text: str
    lenient: bool = False  # ignore unenforceable keywords


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Off: `temperature` 0 (greedy), `top_k` 0, `top_p` 1, `min_p` 0, penalties 0, repetition penalty 1."""

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
    logprobs: int | None = None  # alternatives; None: off
    prompt_logprobs: int | None = None  # of prompts
    replay_tokens: int | None = None  # length of a replayed trace, hidden from scheduling
    stop_repetition: bool = False  # not with a grammar or prescribed length
    grammar: Grammar | None = None  # ends the row, despite `min_tokens` and `ignore_eos`
    least_tokens: int = field(init=False)  # of an answer

    def __post_init__(self) -> None:
        sure = self.ignore_eos and not (self.stop or self.stop_token_ids or self.grammar)
        object.__setattr__(self, "least_tokens", self.max_tokens if sure else self.min_tokens)

    @property
    def penalizes(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
