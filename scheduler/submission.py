"""What the dispatcher takes in."""

from collections.abc import Sequence
from typing import TypeAlias, TypedDict

from engine.sampling.params import SamplingParams
from scheduler.length.prediction import LengthDistribution
from scheduler.programs.program import Program


class Known(TypedDict, total=False):
    priority: int
    client: str
    deadline: float | None
    predicted_length: float | None
    distribution: LengthDistribution | None
    cache_scope: str
    prompt_cache_key: str
    program: Program | None
    promised: float | None
    coverage: float


Submission: TypeAlias = tuple[Sequence[int], SamplingParams, Known]  # an answer to a prompt
