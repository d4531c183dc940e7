from dataclasses import dataclass

LONGEST = 86400.0  # s


@dataclass(frozen=True, slots=True)
class Timing:
    """A prefill, iteration, or KV round trip."""

    rows: int
    length: int  # prompt tokens; columns read; tokens copied
    seconds: float

    def __post_init__(self) -> None:
        if self.rows < 1 or self.length < 0 or not 0 <= self.seconds <= LONGEST:
            raise ValueError(f"a timing is of one row or more, and within a day: {self}")


@dataclass(frozen=True, slots=True)
class SliceTiming:
    rows: int
    length: int
    iterations: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Timings:
    prefill: tuple[Timing, ...] = ()
    decode: tuple[Timing, ...] = ()
    slices: tuple[SliceTiming, ...] = ()
    copies: tuple[Timing, ...] = ()  # of whole batches, there and back
