"""The model that the API serves: its names, its bounds, its text, and the defaults of its answers.

The composition root fills it; nothing here starts or loads anything.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ParamSpec, Protocol, TypeVar

from aiohttp import web

from models.network.generation_config import SamplingDefaults
from server.grammars.compiler import GrammarCompiler
from server.lengths.instruction import InstructionSplit

P = ParamSpec("P")
T = TypeVar("T")


class Codec(Protocol):
    """The part of models.text.Text that handlers use. Encoding is heavy: only what is short, on the event loop."""

    @property
    def longest_token(self) -> int | None: ...
    @property
    def takes_tools(self) -> bool: ...
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...
    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, object] = MappingProxyType({}),
    ) -> list[int]: ...
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...
    def token_string(self, token_id: int) -> str: ...
    def token_text(self, token_id: int) -> str: ...
    def token_bytes(self, token_id: int) -> bytes: ...


def fresh_seed() -> int:
    """A seed that cannot be foreseen."""
    return secrets.randbits(64)


def seed_source(seed: int | None) -> Callable[[], int]:
    """Seeds for answers whose client gave none: a sequence that `seed` decides, or fresh ones for None."""
    return fresh_seed if seed is None else partial(random.Random(seed).getrandbits, 64)


@dataclass(frozen=True, slots=True)
class AnswerDefaults:
    """Settings of an answer where its request says nothing."""

    sampling: SamplingDefaults
    max_tokens: int | None = None
    """Most tokens of a chat's answer whose request names no limit; None: the rest of the context."""
    stop_repetition: bool = False
    """Whether an answer that only repeats itself is ended."""
    next_seed: Callable[[], int] = fresh_seed
    """Makes the seed of an answer whose client gave none."""
    close_schemas: bool = False
    """Whether JSON schemas allow no property that they do not name, and want each that they do, also where they are
    not strict."""
    allow_replay: bool = False
    """Whether a request may bring the length of its answer (design 3.1)."""
    shares_prefixes: bool = False
    """Whether what is kept of one key's prompts serves other keys too: how long an answer takes may then tell them."""
    instruction_split: InstructionSplit = InstructionSplit.SYSTEM
    """Where an instruction is looked for when a request does not say."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One loaded model, as the API knows it."""

    names: tuple[str, ...]
    """Names that the model answers to; the first is its id in responses."""
    root: str
    """The name or path that the model was loaded from, as the user wrote it."""
    context_length: int
    """Longest prompt plus answer, in tokens."""
    vocab_size: int
    """Token ids that both the tokenizer and the network know; either may have more of its own."""
    text: Codec
    tokenizer_pool: Executor
    """Threads in which text is encoded and large bodies are parsed, off the event loop."""
    grammars: GrammarCompiler | None
    """Compiles grammars for the executors; None where answers are not constrained."""
    defaults: AnswerDefaults
    virtual: str | None = None
    """The device that makes filler in place of the model's text; None where the model answers."""
    accepts_any_name: bool = False
    """Whether a request may name any model, and gets this one."""

    @property
    def id(self) -> str:
        return self.names[0]

    async def run_in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of work on texts or bodies that may take long, done off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.tokenizer_pool, partial(work, *args, **kwargs))


MODEL = web.AppKey("model", ServedModel)
