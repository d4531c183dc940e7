"""What a request will need, as far as anybody can say before it has run."""

from __future__ import annotations

from math import ceil

from scheduler.batching.wma import Lengths
from scheduler.request import Request


def expected_lengths(request: Request, context_length: int | None) -> Lengths:
    """L(p) and G'(p) of what is still to do, in whole tokens, for an executor with such a context, where known.

    One that was handed back has K and V for what it generated, which therefore counts as input; one that has outlived
    its prediction is expected to end with its next token. Where nobody predicts, the answer is as long as it may be.
    """
    most = request.sampling.max_tokens - request.generated
    if context_length is not None:
        most = min(most, context_length - request.kv_length)
    if request.predicted_length is not None:
        most = min(most, ceil(request.predicted_length) - request.generated)
    return Lengths(request.kv_length, max(1, most))
