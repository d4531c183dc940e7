"""Finds a call's program among those of its key; never across keys, since timing would show what others sent."""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from models.recent import Recent
from scheduler.programs.program import Kind, Program

MOST_KEYS = 1024
MOST_KINDS = 4096  # of all keys
MOST_ALIKE = 1024  # programs that begin with the same call
MOST_NAMES = 256  # of a call and its answer
LONGEST = 1024  # characters of a name
MOST_MARKS = 65536  # of all keys; the key with the most loses its oldest


@dataclass(frozen=True, slots=True)
class Signs:
    kind: str = ""
    chain: Sequence[bytes] = ()  # digest of the messages up to each
    names: Sequence[str] = ()  # of the run, by what programs send
    extends: Sequence[str] = ()  # ids of earlier answers
    parents: Sequence[str] = ()  # of a subagent: names


class Recognizer:
    """Event loop only."""

    def __init__(self, most: int = MOST_MARKS) -> None:
        self._most = most
        self._alike = 0  # programs beyond one of a mark
        self._keys = Recent[str, Recent[str | bytes, list[Program]]](MOST_KEYS)
        self._kinds = Recent[tuple[str, str], Kind](MOST_KINDS)

    def recognize(self, key: str, signs: Signs, now: float, answer: str = "") -> Program:
        """`answer`: id of the call's own, by which later calls may extend it."""
        marks = self._keys[key] = self._keys.get(key) or Recent(self._most)
        program = self._find(marks, signs)
        if program is None:
            self._kinds[key, signs.kind] = kind = self._kinds.get((key, signs.kind)) or Kind()
            parent = next((marks[name][0].root for name in signs.parents if name in marks), None)
            name = secrets.token_hex(8) if parent is None else f"{parent.name}/{secrets.token_hex(4)}"
            program = Program(name, kind, now, signs.chain[-1] if signs.chain else b"", parent)
        if signs.chain:
            same = marks.get(signs.chain[-1], [])
            self._alike -= max(0, len(same) - 1)
            marks[signs.chain[-1]] = same if program in same else [*same[1 - MOST_ALIKE :], program]
            self._alike += len(marks[signs.chain[-1]]) - 1
        self.mark(key, program, (*signs.names, answer))
        return program

    def mark(self, key: str, program: Program, names: Iterable[str]) -> None:
        marks = self._keys.setdefault(key, Recent(self._most))
        for name in islice((one for one in names if 0 < len(one) <= LONGEST), MOST_NAMES):
            marks[name] = [program]
        while sum(map(len, self._keys.values())) + self._alike > self._most:
            _, gone = max(self._keys.values(), key=len).popitem(last=False)
            self._alike -= len(gone) - 1

    def _find(self, marks: Recent[str | bytes, list[Program]], signs: Signs) -> Program | None:
        for name in (*signs.names, *signs.extends):
            if name in marks:
                return marks[name][0]
        for mark in reversed(() if signs.parents else signs.chain):  # a subagent may begin with its parent's messages
            found = marks.get(mark)
            if found is None:
                continue
            if mark == signs.chain[-1] == found[0].first:
                return None  # another run that begins alike, rather than a repeated call
            # of runs alike so far, the first that has not gone on; the last stays for branches
            self._alike -= len(found) > 1
            return found.pop(0) if len(found) > 1 else found[0]
        return None
