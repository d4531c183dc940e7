"""Stand-ins for what only a CUDA device has: streams, and tensors whose use by streams is noted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch


@dataclass
class Stream:
    """Notes what is asked of it."""

    name: str
    log: list[str]

    def record_event(self) -> str:
        self.log.append(f"{self.name} records")
        return f"event of {self.name}"

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")


@dataclass
class Part:
    """A tensor, on a device or in host memory."""

    is_cuda: bool = False
    log: list[str] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)
    nbytes = 3
    shape, dtype, device = (1,), torch.float32, torch.device("cuda")

    def __getitem__(self, _: object) -> Part:
        return self

    def __iter__(self) -> Iterator[Part]:
        return iter((Part(self.is_cuda), Part(self.is_cuda)))

    def to(self, device: torch.device, *, non_blocking: bool) -> Part:
        assert non_blocking and not self.is_cuda
        self.log.append("copy")
        return Part(is_cuda=True)

    def record_stream(self, stream: Stream) -> None:
        self.streams.append(stream.name)
