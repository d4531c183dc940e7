"""KV caches of earlier prompts by their tokens, so that a prompt with the same beginning is read from there on.

Prompts are cut at multiples of a chunk of their own positions, so that hit and miss compute the same. K is stored
after RoPE, so a block is valid wherever it is copied. Blocks form a forest:

    scope ─ [0,64) ─┬─ [64,128) ─ [128,192)      a chat of two turns
                    └─ [64,128)                  another with the same system prompt
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from engine.device import Kv

CHUNK = 64  # tokens of a block; a multiple of models.network.attention.QUERY_BLOCK: a hit has the bits of a miss


BlockT = TypeVar("BlockT", bound=Kv)


@dataclass(eq=False, slots=True)
class _PrefixNode(Generic[BlockT]):
    parent: str | _PrefixNode[BlockT]  # the scope for a first chunk
    tokens: tuple[int, ...]
    block: BlockT


class PrefixCache(Generic[BlockT]):
    """Blocks in host memory, least recently used out first. One for all executors; any thread may call it."""

    def __init__(self, capacity: int, chunk: int = CHUNK) -> None:
        """`capacity` in bytes, 0 keeps nothing; `chunk` in tokens."""
        self.capacity = capacity
        self.chunk = chunk
        self.queries = 0  # prompt tokens looked up
        self.hits = 0  # of these, tokens found
        self.bytes = 0
        self._children: dict[
            tuple[str | _PrefixNode[BlockT], tuple[int, ...]], _PrefixNode[BlockT]
        ] = {}  # by parent and tokens
        self._nodes: OrderedDict[_PrefixNode[BlockT], None] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._nodes)

    def length(self, prompt: Sequence[int], scope: str = "") -> int:
        """Tokens of a prompt's cached prefix, now; changes nothing."""
        with self._lock:
            return self.chunk * len(self._path(prompt, scope, len(prompt) - 1))

    def find(self, prompts: Sequence[tuple[Sequence[int], str]], least: int = 0) -> list[list[BlockT]]:
        """Blocks of each (prompt, scope)'s longest cached prefix, cut to the shortest of them; one token is left to
        read.

        `least`: tokens of each that are worth copying. Found blocks stay usable after eviction.
        """
        with self._lock:
            paths = [self._path(prompt, scope, len(prompt) - 1) for prompt, scope in prompts]
            shared = min(map(len, paths), default=0)
            shared = shared if self.chunk * shared >= least else 0
            for path in paths:
                self._touch(path)
            self.queries += sum(len(prompt) for prompt, _ in prompts)
            self.hits += self.chunk * shared * len(prompts)
            return [[node.block for node in path[:shared]] for path in paths]

    def keep(self, prompt: Sequence[int], scope: str, make: Callable[[slice], BlockT]) -> None:
        """Keep all whole chunks of a prompt; `make` copies those that are missing."""
        chunk = self.chunk
        whole = len(prompt) // chunk * chunk
        if not self.capacity:
            return
        with self._lock:
            begin = chunk * len(self._path(prompt, scope, whole))
        blocks = [make(slice(place, place + chunk)) for place in range(begin, whole, chunk)]  # without the lock
        with self._lock:
            path = self._path(prompt, scope, whole)
            missing = range(chunk * len(path), whole, chunk)
            if len(missing) > len(blocks):
                return  # evicted meanwhile, so the rest has no parent
            for place, block in zip(missing, blocks[len(blocks) - len(missing) :], strict=True):
                node = _PrefixNode(path[-1] if path else scope, tuple(prompt[place : place + chunk]), block)
                self._children[node.parent, node.tokens] = node
                self._nodes[node] = None
                self.bytes += block.bytes
                path.append(node)
            self._touch(path)
            while self.bytes > self.capacity:
                node, _ = self._nodes.popitem(last=False)
                del self._children[node.parent, node.tokens]
                self.bytes -= node.block.bytes

    def _path(self, prompt: Sequence[int], scope: str, most: int) -> list[_PrefixNode[BlockT]]:
        """Nodes of the longest cached prefix of at most `most` tokens."""
        path: list[_PrefixNode[BlockT]] = []
        parent: str | _PrefixNode[BlockT] = scope
        for place in range(0, most - self.chunk + 1, self.chunk):
            node = self._children.get((parent, tuple(prompt[place : place + self.chunk])))
            if node is None:
                break
            path.append(node)
            parent = node
        return path

    def _touch(self, path: list[_PrefixNode[BlockT]]) -> None:
        """Mark as used, parents after children, so that a node with children is never evicted first."""
        for node in reversed(path):
            self._nodes.move_to_end(node)
