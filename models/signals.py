import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import FrameType


@contextmanager
def handle_signals(handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], object]]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_on(*numbers: signal.Signals) -> AbstractContextManager[None]:
    """As SystemExit(128 + number), so that clean-up runs."""
    return handle_signals(dict.fromkeys(numbers, lambda number, _: sys.exit(128 + number)))


def stoppable() -> AbstractContextManager[None]:
    """SIGTERM and SIGHUP act as Ctrl-C, and so does SIGINT, which a background shell ignores."""
    stopping = dict.fromkeys((signal.SIGTERM, signal.SIGHUP), lambda *_: signal.raise_signal(signal.SIGINT))
    return handle_signals({signal.SIGINT: signal.default_int_handler, **stopping})
