"""Agents' runs of a trace. A turn comes a pause after the answer before."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from loadgen.workload.lengths import RequestLengths
from scheduler.programs.recognizer import Recognizer, Signs


def chain_turns(requests: Sequence[RequestLengths]) -> list[RequestLengths]:
    """A trace's in order of arrival, by the turn before that it names, else by its blocks."""
    recognizer, chats, last = Recognizer(len(requests)), dict[str, str](), dict[str, float]()
    found = []
    for place, one in enumerate(requests):
        chain = [repr(one.blocks[:end]).encode() for end in range(1, len(one.blocks))]  # the last is no whole block
        run = chats.get(one.parent) or (recognizer.recognize("", Signs(chain=chain), 0.0).name if chain else str(place))
        chats[one.chat] = run if one.chat else ""
        found.append(replace(one, run=run, pause=one.arrival - last.get(run, one.arrival)))
        last[run] = one.arrival
    return found


def list_following(trace: Sequence[RequestLengths], turns: int) -> Mapping[int, int]:
    """The place of each one's next turn."""
    if turns > 1:
        return {place: place + 1 for place in range(len(trace) - 1) if (place + 1) % turns}
    last, following = dict[str, int](), dict[int, int]()
    for place, one in enumerate(trace):
        if one.run in last:
            following[last[one.run]] = place
        if one.run:
            last[one.run] = place
    return following
