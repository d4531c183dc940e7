import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil

from scheduler.remaining_length import remaining_length
from scheduler.request import Request
from scheduler.worker import Worker


def whole_length(request: Request) -> int:
    return request.input_length + request.sampling.max_tokens


@dataclass(frozen=True, slots=True)
class Memory:
    """An idle executor may always have one row: admission checked its size."""

    # worker -> (new rows, longest) -> KV tokens; None: a batch of its own, see `most`
    cells: Callable[[Worker], Callable[[int, int], int]] | None = None
    # of a request
    length: Callable[[Request], int] = operator.attrgetter("tokens")
    # (capacity, longest) -> rows of a batch of its own
    most: Callable[[int, int], int] = operator.floordiv

    def __call__(self, worker: Worker, rows: int, length: int) -> bool:
        """The longest of `length` tokens."""
        return self.beside(worker)(rows, length)

    def beside(self, worker: Worker) -> Callable[[int, int], bool]:
        """By new rows and their longest, as long as the worker's rows stay as they are."""
        held, capacity = worker.rows, worker.capacity_tokens
        if self.cells is None:
            return lambda rows, length: rows <= max(1, self.most(capacity, length))
        cells = self.cells(worker)
        return lambda rows, length: held + rows == 1 or cells(rows, length) <= capacity


def _scale(worker: Worker) -> Callable[[int, int], int]:
    held, longest = worker.rows, max((one.tokens for one in worker.requests.values()), default=0)
    return lambda rows, length: (held + rows) * (max(length, longest) + 1)


def _whole(worker: Worker) -> Callable[[int, int], int]:
    longest = max(map(whole_length, worker.requests.values()), default=0)
    return lambda rows, length: (worker.rows + rows) * max(length, longest)


def predicted_length(request: Request) -> int:
    return request.tokens + ceil(remaining_length(request))


def find_peak(running: Iterable[Request], rows: int, length: int) -> int:
    """Greatest rows x columns, as running rows end, beside `rows` new ones at their full `length`."""
    left = sorted(((ceil(remaining_length(one)), one.tokens) for one in running), reverse=True)
    peak, longest = rows * (length + 1), 0
    for place, (more, tokens) in enumerate(left, start=1):
        longest = max(longest, tokens)
        peak = max(peak, (rows + place) * (max(length, longest + more) + 1))
    return peak


def _paged(worker: Worker) -> Callable[[int, int], int]:
    held = sum(map(predicted_length, worker.requests.values()))
    return lambda rows, length: held + rows * length


def _deepspeed_rows(capacity_tokens: int, length: int) -> int:
    return min(12 if length > 1024 else 22 if length > 512 else 28, capacity_tokens // length)


MEMORIES: Mapping[str, Memory] = {
    # batch-size scaling (Baton, 4.3): admit what fits now, swap later
    "scale": Memory(_scale),
    # β = ⌊capacity / (longest prompt plus answer)⌋ rows (Magnus, II-B, equation 1)
    "fixed": Memory(lambda worker: lambda rows, length: (worker.rows + rows) * worker.info.context_length),
    # every row at its longest (SCLS, 3.1)
    "whole": Memory(_whole, length=whole_length),
    # (L + S)·N tokens, asked with L + S (SCLS, equation 7)
    "slice": Memory(),
    # LLaMA2-13B, A100 80 GB, slices of 128: 12 rows where L + S > 1024, 22 where > 512, else 28 (SCLS, Algorithm 2)
    "deepspeed": Memory(most=_deepspeed_rows),
    # N·(L(B) + G'(B)) tokens (Magnus, III-C, equation 5)
    "predicted": Memory(),
    # predicted future peak (Past-Future, ASPLOS 2025), new rows at their end
    "peak": Memory(lambda worker: partial(find_peak, worker.requests.values()), length=predicted_length),
    # predicted ends, unpadded, as in paged backends
    "paged": Memory(_paged, length=predicted_length),
}
