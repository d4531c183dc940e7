"""What rows ask of the sampler, by place: written when rows come or go, so that a step has no loop over them."""

from collections.abc import Collection, Sequence

import numpy as np
import torch
from numpy.random import Philox
from numpy.typing import NDArray
from torch import Tensor

from engine.row import Row
from engine.sampling.params import SamplingParams
from engine.transfer import move

AHEAD = 64  # steps whose random numbers are made at once: one call takes as long as for a single step


class SamplingTable:
    """Places are lists of indices of rows."""

    def __init__(self) -> None:
        self.rows: Sequence[Row] = ()
        self._make(0)

    def sync(self, rows: Sequence[Row]) -> None:
        if rows == self.rows:
            return
        if len(rows) > len(self._wishes):
            self._make(2 * len(rows))
        known = self.rows
        for place, row in enumerate(rows):
            if place >= len(known) or known[place] is not row:
                self._write(place, row.sampling)
        self.rows = list(rows)
        self.draws, self.cuts, self.logprobs, self.penalized, self.grammars, self.biased, self.bars = (
            np.flatnonzero(line).tolist() for line in self._asks[: len(rows)].T
        )
        self._draws = np.array(self.draws, dtype=np.int64)
        drawn = set(self.cuts)
        self.cuts = [index for index, place in enumerate(self.draws) if place in drawn]
        self._settings: Tensor | None = None

    def _make(self, capacity: int) -> None:
        self.rows = ()
        self._wishes = np.zeros((capacity, 4))
        self._asks = np.zeros((capacity, 7), dtype=np.bool_)
        self._numbers = np.zeros((capacity, AHEAD))
        self._blocks = np.full(capacity, -1)

    def _write(self, place: int, one: SamplingParams) -> None:
        draws = one.temperature > 0
        self._wishes[place] = one.temperature, one.min_p, max(one.top_k, 0), one.top_p
        self._blocks[place] = -1
        cuts = draws and (one.top_k > 0 or one.top_p < 1 or one.min_p > 0)
        logprobs, grammar = one.logprobs is not None, one.grammar is not None
        self._asks[place] = draws, cuts, logprobs, one.penalizes, grammar, bool(one.logit_bias), one.min_tokens > 0

    def steps(self, late: Collection[int] = ()) -> NDArray[np.int64]:
        """(rows,): of next tokens; one more for `late` places, whose newest the host has not read."""
        steps = np.array([len(row.generated) for row in self.rows], dtype=np.int64)
        steps[slice(None) if len(late) == len(steps) else list(late)] += 1
        return steps

    def wishes(self, steps: NDArray[np.int64], device: torch.device) -> Tensor:
        """(draws, 5), float64: temperature, min-p, top-k, top-p, number."""
        if self._settings is None:
            self._settings = move(torch.from_numpy(self._wishes[self._draws]), device)
        draws = self._draws
        blocks, places = np.divmod(steps[draws], AHEAD)
        for index in np.flatnonzero(self._blocks[draws] != blocks).tolist():
            place, block = self.draws[index], int(blocks[index])
            self._numbers[place] = uniforms(self.rows[place].sampling.seed, block * AHEAD, AHEAD)
            self._blocks[place] = block
        numbers = move(torch.from_numpy(self._numbers[draws, places]), device)
        return torch.cat((self._settings, numbers[:, None]), dim=1)


def uniforms(seed: int, step: int, count: int) -> NDArray[np.float64]:
    """Philox: the first number of `count` steps from `step` on."""
    generator = Philox(key=0)
    state = generator.state
    state["state"]["key"][0], state["state"]["counter"][0] = seed, step
    generator.state = state
    raw: NDArray[np.uint64] = generator.random_raw(4 * count)
    return (raw[::4] >> np.uint64(11)).astype(np.float64) * 2.0**-53
