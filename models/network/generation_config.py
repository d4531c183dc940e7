"""Sampling parameters that a request leaves out: what a model recommends, and what an operator puts in its place.

It owns the fields, their bounds and their defaults. It reads no file and loads no network.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

Temperature: TypeAlias = Annotated[float, Meta(ge=0, le=2)]
TopP: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
TopK: TypeAlias = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
"""0 and -1 are off."""
MinP: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
RepetitionPenalty: TypeAlias = Annotated[float, Meta(ge=0.01, le=10)]
TokenCount: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Values of the sampling parameters that a request leaves out; at first those of OpenAI's API."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None
    """Tokens that no answer exceeds, whatever its request asks for; None where only the context bounds it."""

    def override(self, given: Mapping[str, Any]) -> SamplingDefaults:
        """Replace values by those given, as in a GenerationConfig; None stands for the API's own default."""
        read, plain = msgspec.convert(given, GenerationConfig), SamplingDefaults()
        values = {name: getattr(read, name) for name in given}
        return replace(self, **{name: getattr(plain, name) if one is None else one for name, one in values.items()})


class GenerationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a generation_config.json that matter here; None where it is silent."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    max_new_tokens: TokenCount | None = None


def sampling_defaults(text: bytes) -> SamplingDefaults:
    """Read what a generation_config.json recommends. Raises msgspec.DecodeError and UnicodeDecodeError."""
    return SamplingDefaults().override(msgspec.structs.asdict(msgspec.json.decode(text, type=GenerationConfig)))


def check_overrides(given: Mapping[str, Any]) -> None:
    """Raise ValueError unless each key is a field of GenerationConfig, with a value within its bounds."""
    known = GenerationConfig.__struct_fields__
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"unknown key {key!r}: {hint}The keys are {', '.join(known)}")
    try:
        msgspec.convert(given, GenerationConfig)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
