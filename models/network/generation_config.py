"""Default sampling: OpenAI's, the model's, the operator's."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta

from models.options import suggest

Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(ge=0, le=1)]
TopK = Annotated[int, Meta(ge=-1, le=2**31 - 1)]  # 0 and -1: off
MinP = Annotated[float, Meta(ge=0, le=1)]
RepetitionPenalty = Annotated[float, Meta(ge=0.01, le=10)]
TokenCount = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class SamplingDefaults(msgspec.Struct, frozen=True):
    """Of generation_config.json, with OpenAI's defaults."""

    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    top_k: TopK = 0
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    max_new_tokens: TokenCount | None = None  # of any answer

    def override(self, given: Mapping[str, Any]) -> Self:
        """None: OpenAI's default; other keys are ignored. Raises msgspec.ValidationError."""
        kept = {name: value for name, value in msgspec.structs.asdict(self).items() if name not in given}
        changed = {name: value for name, value in given.items() if value is not None}
        return msgspec.convert(kept | changed, type(self))


def sampling_defaults(text: bytes) -> SamplingDefaults:
    """Raises msgspec.DecodeError and UnicodeDecodeError."""
    return SamplingDefaults().override(msgspec.json.decode(text, type=dict[str, Any]))


def check_overrides(given: Mapping[str, Any]) -> None:
    """Raises ValueError."""
    known = SamplingDefaults.__struct_fields__
    for key in given:
        if key not in known:
            raise ValueError(f"unknown key {key!r}{suggest(key, known) or ':'} The keys are {', '.join(known)}")
    try:
        SamplingDefaults().override(given)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
