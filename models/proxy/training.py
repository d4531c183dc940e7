"""Two-phase fine-tuning (SSJF, 3.1): encoder and head, then the head."""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.proxy.network import Proxy
from models.proxy.task import ProxyTask, at_ranks, loss, targets

NEIGHBOURHOOD = 16  # batches sorted together: less padding


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """For encoders of 20 million weights."""

    epochs: int = 4  # of phase 1; 0 keeps the encoder
    head_epochs: int = 40  # of phase 2
    batch: int = 16
    encoder_rate: float = 5e-5
    head_rate: float = 1e-3
    patience: int = 1  # epochs without a better held-out loss
    head_patience: int = 5
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class TextRows:
    """Answers' tokens (n,)."""

    texts: Sequence[str]
    lengths: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """A batch of phase 1, an epoch of phase 2."""

    phase: int
    done: int
    total: int


Watch = Callable[[TrainingStep], None]


@dataclass(frozen=True, slots=True)
class History:
    """Held-out: before, by epoch, of phase 2."""

    start: float
    both: tuple[float, ...]
    head: tuple[float, ...]


def train(
    proxy: Proxy, rows: TextRows, held_out: TextRows, options: TrainingOptions, watch: Watch | None = None
) -> History:
    """In place, best on `held_out`; deterministic. Raises ValueError without data."""
    if not rows.texts or not held_out.texts:
        raise ValueError("there are no rows to learn from, or none are held out")
    with torch.random.fork_rng(), torch.enable_grad():  # restores the generator
        torch.manual_seed(options.seed)
        return _Training(proxy, rows, held_out, options, watch or (lambda _: None)).run()


class _Training:
    def __init__(self, proxy: Proxy, rows: TextRows, held: TextRows, options: TrainingOptions, watch: Watch) -> None:
        self._proxy = proxy
        self._network = proxy.network
        self._options = options
        self._watch = watch
        self._rows = proxy.reader.read(rows.texts)
        self._held_rows = proxy.reader.read(held.texts)
        self._targets = targets(proxy.task, proxy.scale, rows.lengths).to(proxy.device)
        self._held_targets = targets(proxy.task, proxy.scale, held.lengths).to(proxy.device)
        self._rng = np.random.default_rng(options.seed)

    def run(self) -> History:
        start = self._held_loss(self._states(self._held_rows))
        both = self._train_both(start) if self._options.epochs else ()
        head = self._train_head() if self._options.head_epochs else ()
        self._network.eval()
        proxy = self._proxy
        if proxy.task is ProxyTask.RANKING:
            with torch.no_grad():
                scores = self._network.head(self._states(self._rows)).squeeze(1)
            proxy.scale = replace(proxy.scale, scores=at_ranks(scores.cpu().numpy()))
        return History(start, both, head)

    def _train_both(self, start: float) -> tuple[float, ...]:
        options, network = self._options, self._network
        parts = (network.encoder, options.encoder_rate), (network.head, options.head_rate)
        optimizer = torch.optim.AdamW([{"params": list(part.parameters()), "lr": rate} for part, rate in parts])
        total, done = options.epochs * math.ceil(len(self._rows) / options.batch), count(1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))

        def train_epoch() -> float:
            network.train()
            for places in self._batches():
                ids, mask = self._proxy.reader.pad([self._rows[place] for place in places], self._proxy.device)
                self._descend(network(ids, mask), places, optimizer)
                schedule.step()
                self._watch(TrainingStep(1, next(done), total))
            return self._held_loss(self._states(self._held_rows))

        return _repeat(network, start, train_epoch, options.epochs, options.patience)

    def _train_head(self) -> tuple[float, ...]:
        options, head, done = self._options, self._network.head, count(1)
        states, held = self._states(self._rows), self._states(self._held_rows)
        optimizer = torch.optim.AdamW(head.parameters(), lr=options.head_rate)

        def train_epoch() -> float:
            for places in self._batches():
                self._descend(head(states[places]), places, optimizer)
            self._watch(TrainingStep(2, next(done), options.head_epochs))
            return self._held_loss(held)

        return _repeat(head, self._held_loss(held), train_epoch, options.head_epochs, options.head_patience)

    def _descend(self, outputs: Tensor, places: list[int], optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        loss(self._proxy.task, outputs, self._targets[places]).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), 1.0)
        optimizer.step()

    def _batches(self) -> Iterator[list[int]]:
        order = self._rng.permutation(len(self._rows)).tolist()
        size = self._options.batch
        batches = []
        for start in range(0, len(order), size * NEIGHBOURHOOD):
            near = sorted(order[start : start + size * NEIGHBOURHOOD], key=lambda place: len(self._rows[place]))
            batches += [near[begin : begin + size] for begin in range(0, len(near), size)]
        return (batches[place] for place in self._rng.permutation(len(batches)).tolist())

    def _states(self, rows: Sequence[list[int]]) -> Tensor:
        return self._proxy.compute(rows, self._network.first_token)

    def _held_loss(self, states: Tensor) -> float:
        with torch.no_grad():
            return float(loss(self._proxy.task, self._network.head(states), self._held_targets))


def _repeat(part: nn.Module, start: float, epoch: Callable[[], float], epochs: int, patience: int) -> tuple[float, ...]:
    """Until `patience`; keeps the best."""
    losses, best = [start], copy.deepcopy(part.state_dict())
    while len(losses) <= epochs and len(losses) - 1 - losses.index(min(losses)) <= patience:
        losses.append(epoch())
        if losses[-1] < min(losses[:-1]):
            best = copy.deepcopy(part.state_dict())
    part.load_state_dict(best)
    return tuple(losses[1:])
