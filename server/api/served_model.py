"""The model that the API serves: its names, its bounds, its text, and the defaults of its answers; the dispatcher of
its requests, and the prediction of their answers' lengths.

The composition root fills it; nothing here starts or loads anything.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from aiohttp import web

from models.network.generation_config import SamplingDefaults
from scheduler.dispatcher import Dispatcher
from server.api.errors import ApiError, invalid
from server.api.output.reply import FINGERPRINT
from server.grammars import GrammarCompiler
from server.lengths.instruction import InstructionSplit
from server.lengths.lengths import Lengths

if TYPE_CHECKING:
    from models.text import Text

P = ParamSpec("P")
T = TypeVar("T")


def seed_source(seed: int | None) -> Callable[[], int]:
    """Seeds for answers whose client gave none: a sequence that `seed` decides, or ones that nobody foresees for
    None."""
    return partial((random.SystemRandom() if seed is None else random.Random(seed)).getrandbits, 64)


@dataclass(frozen=True, slots=True)
class AnswerDefaults:
    """Settings of an answer where its request says nothing."""

    sampling: SamplingDefaults
    max_tokens: int | None = None
    """Most tokens of a chat's answer whose request names no limit; None: the rest of the context."""
    stop_repetition: bool = False
    """Whether an answer that only repeats itself is ended."""
    next_seed: Callable[[], int] = seed_source(None)
    """Makes the seed of an answer whose client gave none."""
    close_schemas: bool = False
    """Whether JSON schemas allow no property that they do not name, and want each that they do, also where they are
    not strict."""
    allow_replay: bool = False
    """Whether a request may bring the length of its answer (design 3.1)."""
    refuse_long_max_tokens: bool = False  # whether one beyond the room behind its prompt is an error, not cut
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
    text: Text
    """Encoding is heavy: only what is short, on the event loop."""
    tokenizer_pool: Executor
    """Threads in which text is encoded and large bodies are parsed, off the event loop."""
    grammars: GrammarCompiler | None
    """Compiles grammars for the executors; None where answers are not constrained."""
    defaults: AnswerDefaults
    fingerprint: str = FINGERPRINT
    """The `system_fingerprint` of answers: this program and its version, or the device that makes filler."""
    accepts_any_name: bool = False
    """Whether a request may name any model, and gets this one."""

    @property
    def id(self) -> str:
        return self.names[0]

    async def run_in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of work on texts or bodies that may take long, done off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(
            self.tokenizer_pool, partial(copy_context().run, work, *args, **kwargs)
        )


MODEL = web.AppKey("model", ServedModel)


def model_name(asked: str | None, model: ServedModel) -> str:
    """The model's name as the client knows it, its id when none was given; raises ApiError 404 for another's."""
    if asked is None or (asked not in model.names and model.accepts_any_name):
        return model.names[0]
    if asked not in model.names:
        raise unknown_model(asked, model.names)
    return asked


def unknown_model(asked: str, known: Sequence[str]) -> ApiError:
    """Status 404 for a name that none of `known` is."""
    return invalid(
        "model", f"{asked[:200]!r} is not served here; use {', '.join(known)}", "model_not_found", status=404
    )


DISPATCHER = web.AppKey("dispatcher", Dispatcher)
LENGTHS = web.AppKey("lengths", Lengths)
