"""Lengths that clients foretell of their answers, each weighed against the predictor by the client's own record.

Let p be the logarithm of the predicted length, h of the foretold one and y of the true one. The forecast is
p + a·(h - p), with the least squares' a = Σ(h - p)·(y - p) / Σ(h - p)² over the client's latest answers, from 0 to 1.
So a client that always says the same gains nothing by it: what it says has to tell what the predictor does not know.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from math import exp, log

from aiohttp import web

from scheduler.length.prediction import Prediction

FEWEST = 8
"""Answers that a client must have foretold before its hints count."""

FADE = 1 - 1 / 64
"""Part of a record that is left at the next answer."""

MOST_CLIENTS = 1024
"""Clients whose records are kept, the latest."""


@dataclass(slots=True)
class _Record:
    answers: int = 0
    agreement: float = 0.0
    """Σ(h - p)·(y - p)."""
    distance: float = 0.0
    """Σ(h - p)²."""

    @property
    def weight(self) -> float:
        if self.answers < FEWEST or not self.distance:
            return 0.0
        return min(1.0, max(0.0, self.agreement / self.distance))

    def add(self, hint: float, true: float) -> None:
        """Note an answer, by the distances of both logarithms from the predicted one."""
        self.answers += 1
        self.agreement = FADE * self.agreement + hint * true
        self.distance = FADE * self.distance + hint * hint


class Hints:
    """Weighs clients' forecasts of lengths by how well earlier ones were kept. Event loop only."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def weigh(self, client: str, hint: int | None, prediction: Prediction | None) -> Prediction | None:
        """The prediction, moved towards what the client foretells as far as its record bears that out."""
        record = self._records.get(client)
        if hint is None or prediction is None or record is None:
            return prediction
        factor = exp(record.weight * log(hint / prediction.length))
        known = prediction.distribution
        scaled = None if known is None else known.scaled(factor)
        return replace(prediction, length=prediction.length * factor, distribution=scaled)

    def learn(self, client: str, hint: int | None, prediction: Prediction | None, length: int) -> None:
        """Note the true length of an answer, by its prediction as it was before the hint."""
        if hint is None or prediction is None or not length:
            return
        record = self._records.setdefault(client, _Record())
        record.add(log(hint / prediction.length), log(length / prediction.length))
        self._records.move_to_end(client)
        if len(self._records) > MOST_CLIENTS:
            self._records.popitem(last=False)


HINTS = web.AppKey("hints", Hints)
