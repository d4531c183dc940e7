"""A journal's latest requests of one strategy."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path

from loadgen.simulate.simulation import Served
from models.errors import UserError
from scheduler.journal.file import RequestEntry, read

FEWEST = 20  # for a meaningful replay


@dataclass(frozen=True, slots=True)
class Replay:
    model: str
    strategy: str
    recorded: tuple[Served, ...]
    max_tokens: int  # most that any asked for
    left_out: int  # without a token
    others: str  # models
    sent: bool  # started when sent, as a gateway's

    @property
    def longest(self) -> int:
        return max(one.input_length + one.output_length for one in self.recorded)

    @property
    def predicted(self) -> bool:
        return any(one.predicted_length is not None for one in self.recorded)


def read_replay(journal: Path, model: str | None, most: int, profiled: Callable[[str], object] = bool) -> Replay:
    """A journal's newest `most` begun requests of one strategy and model (None: the last); a model that is not
    `profiled` is a gateway's backend. Raises UserError.
    """
    models = [one.model for one in read(journal, last=most)]
    whose = model or ["any model", *models][-1]
    more = partial(read, journal, last=most + 1, begun=True)
    newest = ([*more(model=whose)] or [*more(model=Path(whose).name)])[::-1]
    own = [*takewhile(lambda one: one.strategy == newest[0].strategy, newest)]
    entries = sorted(own[:most], key=_arrival)
    others = " or ".join(sorted({*models} - {one.model for one in newest}))
    if len(entries) < FEWEST:
        last, remedy = (f" in the last {most}", "raise --last") if len(own) > most else ("", "serve some more")
        lack = f"{len(entries)} answered requests to {whose} of the latest strategy{last}, and {FEWEST} are wanted"
        also = f", or --of {others}" * bool(others)
        raise UserError(f"{journal}: holds {lack}: {remedy}, or give another --journal{also}")
    origin, oldest, sent = _arrival(entries[0]), own[:most][-1], not profiled(entries[0].model)
    ended = read(journal, since=oldest.finished_at, model=oldest.model)
    return Replay(
        model=entries[0].model,
        strategy=entries[0].strategy,
        recorded=tuple(_served(one, _arrival(one) - origin, sent=sent) for one in entries),
        max_tokens=max(one.max_tokens for one in entries),
        left_out=sum(one.strategy == oldest.strategy and not one.generated for one in ended),
        others=others,
        sent=sent,
    )


def _served(entry: RequestEntry, arrival: float, *, sent: bool) -> Served:
    end = max(0.0, entry.latency)  # others may have written the journal: no stage ends before it begins
    started = min(end, max(0.0, (entry.assigned if sent else entry.started) or 0.0))
    first_token = end if entry.first_token is None else min(end, max(started, entry.first_token))
    return Served(
        arrival=arrival,
        started=arrival + started,
        first_token=arrival + first_token,
        end=arrival + end,
        input_length=entry.input_length,
        output_length=entry.generated,
        runs=entry.runs,
        predicted_length=entry.predicted,
        run=entry.program,
        promised=entry.promised if entry.asked is None else entry.asked,
    )


def _arrival(entry: RequestEntry) -> float:
    """Seconds since 1970."""
    return entry.finished_at - entry.latency
