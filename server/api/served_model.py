"""The served model: names, bounds, text, defaults, dispatcher and length prediction."""

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
from server.config import AnswerSettings, FrontConfig
from server.grammars import GrammarCompiler
from server.lengths.instruction import InstructionSplit
from server.lengths.lengths import Lengths

if TYPE_CHECKING:
    from models.text import Text

P = ParamSpec("P")
T = TypeVar("T")


def seed_source(seed: int | None) -> Callable[[], int]:
    """For answers without one: a sequence from `seed`, or unpredictable."""
    return partial((random.SystemRandom() if seed is None else random.Random(seed)).getrandbits, 64)


@dataclass(frozen=True, slots=True)
class AnswerDefaults:
    """Where the request says nothing."""

    sampling: SamplingDefaults
    max_tokens: int | None = None  # of chats; None: rest of the context
    stop_repetition: bool = False  # end repeating answers
    next_seed: Callable[[], int] = seed_source(None)
    instruction_split: InstructionSplit = InstructionSplit.SYSTEM  # where instructions are found


@dataclass(frozen=True, slots=True)
class ServedModel:
    names: tuple[str, ...]  # the first is its id
    root: str  # name or path as given
    context_length: int  # prompt plus answer, in tokens
    vocab_size: int  # known to tokenizer and network
    text: Text  # only short texts are encoded on the event loop
    tokenizer_pool: Executor  # encodes text and parses large bodies
    grammars: GrammarCompiler | None  # None where answers are unconstrained
    defaults: AnswerDefaults
    settings: AnswerSettings = AnswerSettings()
    fingerprint: str = FINGERPRINT  # `system_fingerprint`

    async def run_in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Heavy work on texts or bodies."""
        run = partial(copy_context().run, work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self.tokenizer_pool, run)


MODEL = web.AppKey("model", ServedModel)


def model_name(asked: str | None, model: ServedModel) -> str:
    """The default if none is given; raises ApiError 404."""
    if asked is None or (asked not in model.names and model.settings.accept_any_model):
        return model.names[0]
    if asked not in model.names:
        raise unknown_model(asked, model.names)
    return asked


def unknown_model(asked: str, known: Sequence[str]) -> ApiError:
    fault = f"{asked[:200]!r} is not served here; use {', '.join(known)}"
    return invalid("model", fault, "model_not_found", status=404)


DISPATCHER = web.AppKey("dispatcher", Dispatcher)
LENGTHS = web.AppKey("lengths", Lengths)
LIMITS = web.AppKey("limits", FrontConfig)
