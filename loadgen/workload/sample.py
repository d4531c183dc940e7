"""Requests made of text, with the answers that they might get; the workloads `jsonl` and `sharegpt`, which read such
from files; and prompts of random tokens. Tokens are counted with a tokenizer, else estimated from characters.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from loadgen.client.request import Prompt
from loadgen.workload.lengths import TRUNCATED, at, json_objects, read_text
from models.errors import UserError

Count: TypeAlias = Callable[[str], int]
"""Tokens of a text, special ones aside."""

VOCABULARY = 32_000
"""Token ids below this are known to nearly every model in use."""

CHARACTERS_PER_TOKEN = 4
"""For ASCII text; other characters are counted as a token each."""


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


def read_jsonl(path: Path, *, need_reference: bool) -> list[Sample]:
    """Every line's request; raises UserError, also for a line without a reference where one is needed.

    `turns` are what a user said one after the other. The answers in between are not in the file, so the turns are
    sent as one message, the last of them at its end; `input` is then not used.
    """
    samples = []
    for line, row in json_objects(path):
        samples.append(_sample(path, line, row))
        if need_reference and not samples[-1].reference:
            raise at(path, line, "has no reference, whose length --replay-lengths needs")
    if not samples:
        raise UserError(f"{path}: holds no requests")
    return samples


def _sample(path: Path, line: int, row: Mapping[str, Any]) -> Sample:
    instruction, given, reference = (_text(path, line, row, key) for key in ("instruction", "input", "reference"))
    text = "\n\n".join(_turns(path, line, row)) or given
    if not (instruction or text):
        raise at(path, line, "has no text: give instruction, input or turns")
    return Sample(path.stem, instruction, text, reference)


def _text(path: Path, line: int, row: Mapping[str, Any], key: str) -> str:
    value = row.get(key) or ""
    if not isinstance(value, str):
        raise at(path, line, f"{key}: must be a string, not {type(value).__name__}")
    return value


def _turns(path: Path, line: int, row: Mapping[str, Any]) -> list[str]:
    turns = row.get("turns") or []
    if not (isinstance(turns, list) and all(isinstance(turn, str) and turn for turn in turns)):
        raise at(path, line, "turns: must be a list of strings, none of them empty")
    return turns


LEAST, LONGEST = 4, 1024
"""Tokens that questions and answers must have, and that questions may have at most."""

HUMANS = ("human", "user")
HINT = f"the file must be one JSON list; {TRUNCATED}"


def read_sharegpt(path: Path) -> list[Sample]:
    """A list of objects with `conversations`: `from` and `value`; those without an answer are left out.

    Raises UserError.
    """
    text = read_text(path)
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        raise at(path, error.lineno, f"is not valid JSON ({error.msg}); {HINT}") from None
    except RecursionError:
        raise UserError(f"{path}: is nested too deeply") from None
    if not isinstance(entries, list):
        raise UserError(f"{path}: {HINT}")
    samples = [
        sample
        for number, entry in enumerate(entries, 1)
        for sample in _first_exchange(f"{path}, entry {number}", entry)
    ]
    if not samples:
        raise UserError(f"{path}: holds no conversation with a question and an answer")
    return samples


def fits(question: int, answer: int, longest: int | None) -> bool:
    """Whether an exchange of so many tokens is used: `vllm bench serve` leaves out what is very short or long.

    Question and answer together may have twice the tokens that a question may have.
    """
    longest = LONGEST if longest is None else longest
    return LEAST <= question <= longest and answer >= LEAST and question + answer <= 2 * longest


def _first_exchange(where: str, entry: Any) -> Iterator[Sample]:
    turns = entry.get("conversations", entry.get("conversation")) if isinstance(entry, dict) else None
    if not isinstance(turns, list):
        raise UserError(f"{where}: must be an object with a list of conversations, as ShareGPT files have")
    if not all(isinstance(turn, dict) and isinstance(turn.get("value"), str) for turn in turns):
        raise UserError(f"{where}: conversations: every turn must be an object with from and value")
    for question, answer in zip(turns, turns[1:], strict=False):
        if question.get("from") in HUMANS and answer.get("from") not in HUMANS:
            if question["value"].strip() and answer["value"].strip():
                yield Sample("sharegpt", "", question["value"], answer["value"])
            return


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


def draw_length(mean: int, ratio: float, rng: random.Random) -> int:
    """A length uniform in mean * [1 - ratio, 1 + ratio], as `vllm bench serve` draws it."""
    return rng.randint(max(1, math.floor(mean * (1 - ratio))), max(1, math.ceil(mean * (1 + ratio))))
