"""The oracle: lengths that replayed requests bring along (design 3.1). No other part of the scheduler looks at them."""

from __future__ import annotations

from engine.sampling.params import SamplingParams
from scheduler.length.prediction import Prediction, Source


class NoReplay(ValueError):
    """The oracle was asked for the length of a request that did not bring it."""


def oracle(sampling: SamplingParams) -> Prediction:
    """The length that will be generated; raises NoReplay where the request does not say it."""
    if sampling.replay_tokens is None:
        raise NoReplay(
            "this strategy needs to know each answer's length: send replay_tokens, with --allow-replay, "
            "or choose another --strategy"
        )
    return Prediction(min(sampling.replay_tokens, sampling.max_tokens), Source.ORACLE)


def is_replayed(sampling: SamplingParams) -> bool:
    """Whether a request brings its length along."""
    return sampling.replay_tokens is not None


def true_length(sampling: SamplingParams) -> float:
    """The length that will be generated, in tokens; raises as `oracle`."""
    return oracle(sampling).length
