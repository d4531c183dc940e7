"""The oracle: lengths that replayed requests carry (design 3.1), read nowhere else in the scheduler."""

from engine.sampling.params import SamplingParams
from scheduler.length.prediction import Prediction, Source


class NoReplay(ValueError):
    """A request without a length of its own."""


def oracle(sampling: SamplingParams) -> Prediction:
    """Raises NoReplay."""
    if sampling.replay_tokens is None:
        raise NoReplay(
            "this strategy needs to know each answer's length: send replay_tokens, with --allow-replay, "
            "or choose another --strategy"
        )
    return Prediction(min(sampling.replay_tokens, sampling.max_tokens), Source.ORACLE)


def is_replayed(sampling: SamplingParams) -> bool:
    return sampling.replay_tokens is not None


def true_length(sampling: SamplingParams) -> float:
    """In tokens; raises NoReplay."""
    return oracle(sampling).length
