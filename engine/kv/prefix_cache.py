"""K and V of prompts that were read, kept by the tokens that they stand for, so that a prompt which begins like an
earlier one is read from there on. Torch-free: what a block holds is its owner's business.

Prompts are cut at multiples of a chunk of their own positions, hit or miss, so that both compute the same numbers. A
block holds the K and V of one such chunk after RoPE, so it is right wherever it is copied to. Blocks form a forest:

    scope ── [0, 64) ─┬─ [64, 128) ── [128, 192)      a chat of two turns
                      └─ [64, 128)                    another with the same system prompt, which is kept once
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from engine.device import Kv

CHUNK = 64
"""Tokens of a block, unless said otherwise; a multiple of models.network.attention.QUERY_BLOCK."""


BlockT = TypeVar("BlockT", bound=Kv)
"""K and V of the tokens of one chunk."""


@dataclass(eq=False, slots=True)
class _Node(Generic[BlockT]):
    """One chunk of a prompt that was read."""

    parent: str | _Node[BlockT]
    """The chunk before it; of a prompt's first one its scope."""
    tokens: tuple[int, ...]
    block: BlockT


class PrefixCache(Generic[BlockT]):
    """Blocks in host memory, the least recently used of which go when there are too many bytes of them.

    One for all executors of a process. Each call may come from any thread. Prompts of different scopes share nothing.
    """

    def __init__(self, capacity: int, chunk: int = CHUNK) -> None:
        """`capacity`: bytes that blocks may take; 0 keeps nothing. `chunk`: tokens of a block."""
        self.capacity = capacity
        self.chunk = chunk
        self.queries = 0
        """Tokens of the prompts that were to be read."""
        self.hits = 0
        """Tokens of them that were copied in place of being read."""
        self.bytes = 0
        """Host memory that blocks take."""
        self._children: dict[tuple[str | _Node[BlockT], tuple[int, ...]], _Node[BlockT]] = {}  # by parent and tokens
        self._nodes: OrderedDict[_Node[BlockT], None] = OrderedDict()  # the least recently used first
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Blocks that are kept."""
        return len(self._nodes)

    def length(self, prompt: Sequence[int], scope: str = "") -> int:
        """Tokens of a prompt that need not be read, as it stands now; changes nothing."""
        with self._lock:
            return self.chunk * len(self._path(prompt, scope, len(prompt) - 1))

    def find(
        self, prompts: Sequence[tuple[Sequence[int], str]], pays: Callable[[int], bool] = lambda tokens: True
    ) -> list[list[BlockT]]:
        """Blocks of prompts that are read together, each with its scope: of each those of its longest kept prefix, its
        first chunk first, but no more than every one of them has. At least one token is left to read, since its logits
        are wanted. What is found stays usable when the cache lets it go.

        pays  whether it pays to copy so many tokens of each; where it does not, there are no blocks
        """
        with self._lock:
            paths = [self._path(prompt, scope, len(prompt) - 1) for prompt, scope in prompts]
            shared = min(map(len, paths), default=0)
            shared = shared if pays(self.chunk * shared) else 0
            for path in paths:
                self._touch(path)
            self.queries += sum(len(prompt) for prompt, _ in prompts)
            self.hits += self.chunk * shared * len(prompts)
            return [[node.block for node in path[:shared]] for path in paths]

    def keep(self, prompt: Sequence[int], scope: str, make: Callable[[slice], BlockT]) -> None:
        """Keep all whole chunks of a prompt that was read; `make` copies the K and V of those that are not here yet."""
        chunk = self.chunk
        whole = len(prompt) // chunk * chunk
        if not self.capacity:
            return
        with self._lock:
            begin = chunk * len(self._path(prompt, scope, whole))
        blocks = [make(slice(place, place + chunk)) for place in range(begin, whole, chunk)]  # while others go on
        with self._lock:
            path = self._path(prompt, scope, whole)
            missing = range(chunk * len(path), whole, chunk)
            if len(missing) > len(blocks):
                return  # some went meanwhile: what comes after them has nothing to hang from
            for place, block in zip(missing, blocks[len(blocks) - len(missing) :], strict=True):
                node = _Node(path[-1] if path else scope, tuple(prompt[place : place + chunk]), block)
                self._children[node.parent, node.tokens] = node
                self._nodes[node] = None
                self.bytes += block.bytes
                path.append(node)
            self._touch(path)
            while self.bytes > self.capacity:
                node, _ = self._nodes.popitem(last=False)
                del self._children[node.parent, node.tokens]
                self.bytes -= node.block.bytes

    def _path(self, prompt: Sequence[int], scope: str, most: int) -> list[_Node[BlockT]]:
        """Nodes of the longest kept prefix of at most so many tokens."""
        path: list[_Node[BlockT]] = []
        parent: str | _Node[BlockT] = scope
        for place in range(0, most - self.chunk + 1, self.chunk):
            node = self._children.get((parent, tuple(prompt[place : place + self.chunk])))
            if node is None:
                break
            path.append(node)
            parent = node
        return path

    def _touch(self, path: list[_Node[BlockT]]) -> None:
        """Mark nodes as used now, a parent always after its children: so the first to go is never one with children."""
        for node in reversed(path):
            self._nodes.move_to_end(node)

    def check(self) -> None:
        """Assert that every node is found and goes before the one that it hangs from, within the bound; for tests."""
        order = {node: place for place, node in enumerate(self._nodes)}
        assert set(order) == set(self._children.values())
        assert all(isinstance(node.parent, str) or order[node.parent] > place for node, place in order.items())
        assert self.bytes == sum(node.block.bytes for node in order) <= self.capacity
