"""From an estimate to a request's prediction, or to what stands in for one; and how often each was the case."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from scheduler.length.features import LengthQuery
from scheduler.length.history import LengthHistory
from scheduler.length.prediction import Answer, Estimate, Prediction, Source, prediction_of

log = logging.getLogger(__name__)


class Front:
    """Turns estimates into predictions, and counts. Event loop only."""

    def __init__(self, history: LengthHistory, observe: Callable[[float], None] = lambda seconds: None) -> None:
        """`observe` is called with the seconds that each request waited for its prediction."""
        self.sources: Counter[Source] = Counter()
        """Number of predictions from each source."""
        self.timeouts = 0
        """Requests that went on without a prediction because it took too long, or the predictor keeps failing."""
        self.failures = 0
        """Times that the predictor failed to answer."""
        self._failures_in_row = 0
        self._history = history
        self._observe = observe

    def _conclude(
        self, query: LengthQuery, estimate: Estimate | None, waited: float, late: Answer | None = None
    ) -> Prediction:
        """The prediction that an estimate means, or else the usual length of answers, or else the longest."""
        prediction = None if estimate is None else prediction_of(query, estimate)
        if prediction is None:
            features = () if estimate is None else estimate.features
            usual = self._history.expect(query.instruction)
            length, source = (query.max_tokens, Source.MAX_TOKENS) if usual is None else (usual, Source.HISTORY)
            prediction = Prediction(min(length, query.max_tokens), source, features, late=late)
        self._observe(waited)
        self.sources[prediction.source] += 1
        return prediction

    def _fail(self, error: Exception) -> None:
        if self._failures_in_row == 0:
            log.warning("the length predictor failed, requests go on with the fallback", exc_info=error)
        self.failures += 1
        self._failures_in_row += 1


class InProcess(Front):
    """Asks a predictor that answers at once, in this process."""

    def __init__(
        self,
        estimate: Callable[[LengthQuery], Estimate],
        history: LengthHistory,
        observe: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        super().__init__(history, observe)
        self._estimate = estimate

    def predict(self, query: LengthQuery) -> Prediction:
        """The predicted length; never raises what the predictor raises."""
        begun = time.perf_counter()
        estimate = None
        try:
            (estimate,) = check_estimates([self._estimate(query)], 1)
            self._failures_in_row = 0
        except Exception as error:
            self._fail(error)
        return self._conclude(query, estimate, time.perf_counter() - begun)


def check_estimates(estimates: Sequence[Estimate], asked: int) -> Sequence[Estimate]:
    """The estimates, if there are as many as were asked for and their lengths can be; raises ValueError."""
    if len(estimates) != asked:
        raise ValueError(f"{len(estimates)} estimates for {asked} requests")
    for one in estimates:
        if one.distribution is not None and not one.distribution.is_possible:
            raise ValueError(f"no answer can have these lengths: {one.distribution}")
    return estimates
