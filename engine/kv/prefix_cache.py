"""KV caches of earlier prompts, in blocks of whole chunks, valid wherever copied:

scope ─ [0,64) ─┬─ [64,128) ─ [128,192)      a chat of two turns
                └─ [64,128)                  another with the same system prompt
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

from engine.device import Kv

CHUNK = 64  # tokens of a block; a multiple of models.network.attention.QUERY_BLOCK: a hit has the bits of a miss


BlockT = TypeVar("BlockT", bound=Kv)


@dataclass(eq=False, slots=True)
class _PrefixNode(Generic[BlockT]):
    parent: str | _PrefixNode[BlockT]  # or scope
    tokens: tuple[int, ...]
    block: BlockT
    used: float = -inf  # seconds, with those in which it is expected again
    use: int = -1  # latest


class PrefixCache(Generic[BlockT]):
    """Blocks in host memory, shared by executors, thread-safe; LRU, but a use counts as later by the seconds in which
    the prompt's program is expected back.
    """

    def __init__(self, capacity: int, chunk: int = CHUNK, now: Callable[[], float] = time.monotonic) -> None:
        """Bytes, 0 for none; tokens."""
        self.capacity = capacity
        self.chunk = chunk
        self.queries = 0  # prompt tokens
        self.hits = 0  # of these
        self.bytes = 0
        self._children: dict[tuple[str | _PrefixNode[BlockT], tuple[int, ...]], _PrefixNode[BlockT]] = {}
        self._now = now
        self._oldest: list[tuple[float, int, _PrefixNode[BlockT]]] = []  # heap, with earlier uses
        self._uses = itertools.count()
        self._lock = threading.Lock()

    def length(self, prompt: Sequence[int], scope: str = "", read_within: float = 0.0) -> int:
        """Tokens cached now, which stay for the seconds in which they are to be read."""
        with self._lock:
            path = self._path(prompt, scope, len(prompt) - 1)
            if read_within:
                self._touch(path, read_within)
            return self.chunk * len(path)

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
                self._touch(path, 0.0)
            self.queries += sum(len(prompt) for prompt, _ in prompts)
            self.hits += self.chunk * shared * len(prompts)
            return [[node.block for node in path[:shared]] for path in paths]

    def keep(self, prompt: Sequence[int], scope: str, make: Callable[[slice], BlockT], back_within: float = 0) -> None:
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
                return  # parent evicted
            for place, block in zip(missing, blocks[len(blocks) - len(missing) :], strict=True):
                node = _PrefixNode(path[-1] if path else scope, tuple(prompt[place : place + chunk]), block)
                self._children[node.parent, node.tokens] = node
                self.bytes += block.bytes
                path.append(node)
            self._touch(path, back_within)
            self._evict(path[len(path) - len(missing) :])

    def _evict(self, added: list[_PrefixNode[BlockT]]) -> None:
        """What is expected back stays, and what was added last goes: of programs in turn LRU would keep none."""
        now = self._now()
        while self.bytes > self.capacity:
            used, use, node = self._oldest[0]
            if use == node.use and used > now and added:
                node = added.pop()
                node.use = -1
            else:
                heapq.heappop(self._oldest)
                if use != node.use:
                    continue
            del self._children[node.parent, node.tokens]
            self.bytes -= node.block.bytes

    def _path(self, prompt: Sequence[int], scope: str, most: int) -> list[_PrefixNode[BlockT]]:
        path: list[_PrefixNode[BlockT]] = []
        parent: str | _PrefixNode[BlockT] = scope
        for place in range(0, most - self.chunk + 1, self.chunk):
            node = self._children.get((parent, tuple(prompt[place : place + self.chunk])))
            if node is None:
                break
            path.append(node)
            parent = node
        return path

    def _touch(self, path: list[_PrefixNode[BlockT]], back_within: float) -> None:
        """Parents last, so that none is evicted before its children."""
        used = self._now() + back_within
        for node in reversed(path):
            used = node.used = max(node.used, used)
            node.use = next(self._uses)
            heapq.heappush(self._oldest, (node.used, node.use, node))
        if len(self._oldest) > 4 * len(self._children):
            self._oldest = [(node.used, node.use, node) for node in self._children.values()]
            heapq.heapify(self._oldest)
