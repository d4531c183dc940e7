"""Tokens without a model: how many a text has, and prompts of random ones, the workload `random`.

With a tokenizer's folder the counts are exact; without, they are estimated from the characters.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from loadgen.client.request import Prompt
from models.errors import UserError

Count: TypeAlias = Callable[[str], int]
"""Tokens of a text, special ones aside."""

VOCABULARY = 32_000
"""Token ids below this are known to nearly every model in use."""

CHARACTERS_PER_TOKEN = 4
"""For ASCII text; other characters are counted as a token each."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The way to count tokens, and the ids that random prompts are made of."""

    count: Count
    ids: tuple[int, ...]


def load_vocabulary(tokenizer: Path | None, size: int | None) -> Vocabulary:
    """The vocabulary of a folder with a tokenizer.json, or an assumed one of `size` ids; raises UserError.

    Of an assumed one, the first hundredth of the ids is not used: that is where control tokens are.
    """
    if tokenizer is not None:
        return _of_tokenizer(tokenizer, size)
    size = VOCABULARY if size is None else size
    return Vocabulary(estimate, tuple(range(size // 100, size)))


def estimate(text: str) -> int:
    """Tokens of a text, from its characters: English and code come within 15 % of what
    a byte-level tokenizer of 49,152 tokens counts."""
    plain = len(text) if text.isascii() else sum(character.isascii() for character in text)
    return -(-plain // CHARACTERS_PER_TOKEN) + len(text) - plain


def _of_tokenizer(folder: Path, size: int | None) -> Vocabulary:
    from tokenizers import Tokenizer  # of no use to most commands

    file = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_str(file.read_text("utf-8"))
    except OSError as error:
        raise UserError(f"--tokenizer: {file} cannot be read: {error.strerror}; give a model's folder") from None
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"--tokenizer: {file} is not a tokenizer: {error}") from None
    tokenizer.no_truncation()
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    known = set(tokenizer.get_vocab().values()) - special
    ids = tuple(sorted(number for number in known if size is None or number < size))
    if not ids:
        raise UserError(f"--random-vocab-size {size}: {file} has no ordinary token below it")
    return Vocabulary(lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids), ids)


class RandomTokens:
    """Prompts of random ids: windows of one shuffled vocabulary, so that even a million tokens are made at once."""

    def __init__(self, ids: tuple[int, ...], rng: random.Random) -> None:
        shuffled = list(ids)
        rng.shuffle(shuffled)
        self._ids = tuple(shuffled)
        self._rng = rng

    def take(self, length: int) -> tuple[int, ...]:
        """A prompt of `length` tokens."""
        start = self._rng.randrange(len(self._ids))
        rounds = -(-(start + length) // len(self._ids))
        return (self._ids * rounds)[start : start + length]


def token_prompt(
    tokens: RandomTokens, input_length: int, output_length: int, *, label: str, arrival: float | None = None
) -> Prompt:
    """A prompt of random tokens whose lengths are given."""
    return Prompt(
        tokens=tokens.take(input_length),
        replay_tokens=output_length,
        arrival=arrival,
        label=label,
        input_length=input_length,
    )


def draw_length(mean: int, ratio: float, rng: random.Random) -> int:
    """A length uniform in mean * [1 - ratio, 1 + ratio], as `vllm bench serve` draws it."""
    return rng.randint(max(1, math.floor(mean * (1 - ratio))), max(1, math.ceil(mean * (1 + ratio))))
