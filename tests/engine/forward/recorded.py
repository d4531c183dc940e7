"""A stand-in for CUDA graphs on a CPU: operations are recorded with their addresses and numbers, and replayed."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """One graph: whatever Python computed when it was captured stays as it was, only memory is read again."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], list[Any]]] = []
        self.replays = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, tree_leaves(found)))
        return found

    def replay(self) -> None:
        """Each operation once more, its result to where it went in the capture."""
        self.replays += 1
        for func, args, kwargs, before in self.calls:
            for out, found in zip(before, tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(out, Tensor) and out.data_ptr() != found.data_ptr():
                    out.copy_(found)


class Recorder:
    """The graphs that were captured, in order; to be passed as `capture`."""

    def __init__(self) -> None:
        self.graphs: list[Recording] = []

    def __call__(self, _: torch.device) -> Callable[[Callable[[], None]], Callable[[], None]]:
        return self._capture

    def _capture(self, body: Callable[[], None]) -> Callable[[], None]:
        graph = Recording()
        with graph:
            body()
        self.graphs.append(graph)
        return graph.replay

    @property
    def replays(self) -> int:
        return sum(graph.replays for graph in self.graphs)
