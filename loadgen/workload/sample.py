"""Requests of texts with answers, from `jsonl` and `sharegpt` files, and random prompts; tokens by a tokenizer, or
estimated.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec

from loadgen.client.request import LoadPrompt
from loadgen.workload.lengths import at, json_lines, tell_left_out, text_lines
from models.errors import UserError

Count = Callable[[str], int]  # tokens of a text, without special ones

VOCABULARY = 32_000  # ids known to nearly every model

CHARACTERS_PER_TOKEN = 4  # in ASCII; other characters are a token each


@dataclass(frozen=True, slots=True)
class Sample:
    label: str
    instruction: str  # system message, may be empty
    input: str
    reference: str = ""  # determines the answer's length, or empty
    stretch: float = 1.0  # answer tokens a reference token

    def messages(self) -> tuple[Mapping[str, str], ...]:
        user = {"role": "user", "content": self.input or self.instruction}
        if not (self.input and self.instruction):
            return (user,)
        return ({"role": "system", "content": self.instruction}, user)

    def prompt(self, count: Count) -> LoadPrompt:
        """With the length in `replay_tokens`."""
        return LoadPrompt(messages=self.messages(), label=self.label, replay_tokens=self.output_length(count))

    def input_length(self, count: Count) -> int:
        """Without the chat template."""
        return count(self.instruction) + count(self.input)

    def output_length(self, count: Count) -> int | None:
        """G(p), end token included; None if unknown."""
        return round(count(self.reference) * self.stretch) + 1 if self.reference else None


class SampleLine(msgspec.Struct):
    """Of a `jsonl` file."""

    instruction: str | None = None
    input: str | None = None
    turns: list[Annotated[str, msgspec.Meta(min_length=1)]] | None = None
    reference: str | None = None


def read_jsonl(path: Path, *, need_reference: bool) -> list[Sample]:
    """Raises UserError, also for a missing reference. `turns`, without answers, are sent as one message instead of
    `input`.
    """
    samples = []
    for number, line in json_lines(path, SampleLine):
        text = "\n\n".join(line.turns or ()) or line.input or ""
        samples.append(Sample(path.stem, line.instruction or "", text, line.reference or ""))
        if not (line.instruction or text):
            raise at(path, number, "has no text: give instruction, input or turns")
        if need_reference and not line.reference:
            raise at(path, number, "has no reference, whose length --replay-lengths needs")
    if not samples:
        raise UserError(f"{path}: holds no requests")
    return samples


LEAST, LONGEST = 4, 1024  # tokens of questions and answers, and of questions at most

HUMANS = ("human", "user")


class SampleTurn(msgspec.Struct, rename={"sender": "from"}):
    """ShareGPT's names, or OpenAI's."""

    value: str | None = None
    sender: str | None = None
    content: str | None = None
    role: str | None = None

    @property
    def text(self) -> str:
        return self.value or self.content or ""

    @property
    def is_human(self) -> bool:
        return (self.sender or self.role) in HUMANS


class SampleConversation(msgspec.Struct):
    """ShareGPT's."""

    conversations: list[SampleTurn] | None = None
    conversation: list[SampleTurn] | None = None
    messages: list[SampleTurn] | None = None

    def first_exchange(self) -> Sample | None:
        turns = self.conversations or self.conversation or self.messages or ()
        for question, answer in pairwise(turns):
            if question.is_human and not answer.is_human:
                asked = question.text.strip() and answer.text.strip()
                return Sample("sharegpt", "", question.text, answer.text) if asked else None
        return None


def read_sharegpt(path: Path) -> list[Sample]:
    """Objects with `conversations`; unusable ones are counted. Raises UserError."""
    try:
        entries = msgspec.json.decode("".join(text for _, text in text_lines(path)), type=list[msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UserError(f"{path}: is not one JSON list of conversations: {error}") from None
    samples, decoder = list[Sample](), msgspec.json.Decoder(SampleConversation)
    for entry in entries:
        with suppress(msgspec.MsgspecError, RecursionError):
            if (sample := decoder.decode(entry).first_exchange()) is not None:
                samples.append(sample)
    if not samples:
        raise UserError(f"{path}: holds no conversation with a question and an answer")
    tell_left_out(path, len(entries) - len(samples), len(entries), "they have no question with an answer")
    return samples


def fits(question: int, answer: int, longest: int | None) -> bool:
    """By the bounds of `vllm bench serve`: both together twice a question."""
    longest = LONGEST if longest is None else longest
    return LEAST <= question <= longest and answer >= LEAST and question + answer <= 2 * longest


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Counts tokens, and has ids for random prompts."""

    count: Count
    ids: tuple[int, ...]


def load_vocabulary(tokenizer: Path | None, size: int | None) -> Vocabulary:
    """Of a tokenizer.json's folder, or `size` ids without the first hundredth, control tokens; raises UserError."""
    if tokenizer is not None:
        return _of_tokenizer(tokenizer, size)
    size = VOCABULARY if size is None else size
    return Vocabulary(estimate, tuple(range(size // 100, size)))


def estimate(text: str) -> int:
    """Within 15 % of a byte-level tokenizer of 49,152 tokens, for English and code."""
    plain = len(text) if text.isascii() else sum(character.isascii() for character in text)
    return -(-plain // CHARACTERS_PER_TOKEN) + len(text) - plain


def _of_tokenizer(folder: Path, size: int | None) -> Vocabulary:
    from tokenizers import Tokenizer  # rarely needed

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
    if not (ids := tuple(sorted(number for number in known if size is None or number < size))):
        raise UserError(f"--random-vocab-size {size}: {file} has no ordinary token below it")
    return Vocabulary(lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids), ids)
