"""Encodes texts by the pieces between control tokens, and remembers late ones: earlier turns are encoded once."""

from __future__ import annotations

import json
import re
import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenizers import Encoding, Tokenizer

MOST_BYTES = 2**26

Encode = Callable[[list[str]], list[Encoding]]


@dataclass(frozen=True, slots=True)
class EncodedPiece:
    text: str
    ids: array[int]
    starts: array[int]  # characters
    ends: array[int]

    @property
    def bytes(self) -> int:
        return len(self.text) + 3 * self.ids.itemsize * len(self.ids)


@dataclass(frozen=True, slots=True)
class JoinedEncoding:
    """As an Encoding of the joined text."""

    pieces: Sequence[EncodedPiece]

    @property
    def ids(self) -> list[int]:
        return [index for piece in self.pieces for index in piece.ids]

    def char_to_token(self, place: int) -> int | None:
        before = 0
        for piece in self.pieces:
            if place < len(piece.text):
                token = bisect_right(piece.ends, place)
                return before + token if token < len(piece.ids) and piece.starts[token] <= place else None
            place, before = place - len(piece.text), before + len(piece.ids)
        return None


def find_marks(backend: Tokenizer) -> re.Pattern[str] | None:
    """Tokens that texts can be cut before without other tokens; None where what stands around one matters."""
    parts, added = json.loads(backend.to_str()), backend.get_added_tokens_decoder().values()
    if parts["normalizer"] is not None or "Metaspace" in json.dumps(parts["pre_tokenizer"]):
        return None
    if not added or any(one.lstrip or one.rstrip or one.single_word for one in added):
        return None
    return re.compile("|".join(sorted((re.escape(one.content) for one in added), key=len, reverse=True)))


class TextMemory:
    """Thread-safe; pieces of one scope are never found by another, since timing would show what others sent."""

    def __init__(self, marks: re.Pattern[str], encode: Encode, most: int = MOST_BYTES) -> None:
        self._marks, self._encode, self._most = marks, encode, most
        self._bytes = 0
        self._known: OrderedDict[tuple[str, str], EncodedPiece] = OrderedDict()  # LRU
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str], scope: str) -> list[JoinedEncoding]:
        cut = list[list[str]]()
        for text in texts:
            places = [0, *(found.start() for found in self._marks.finditer(text)), len(text)]
            cut.append([text[begin:end] for begin, end in zip(places, places[1:], strict=False) if begin < end])
        asked = dict.fromkeys(piece for pieces in cut for piece in pieces)
        with self._lock:
            known = {piece: self._known[scope, piece] for piece in asked if (scope, piece) in self._known}
            for piece in known:
                self._known.move_to_end((scope, piece))
        new = [piece for piece in asked if piece not in known]
        for piece, encoding in zip(new, self._encode(new) if new else (), strict=True):
            starts, ends = zip(*encoding.offsets, strict=True) if encoding.ids else ((), ())
            known[piece] = EncodedPiece(piece, *(array("I", part) for part in (encoding.ids, starts, ends)))
        with self._lock:
            for piece in new:
                if self._known.setdefault((scope, piece), known[piece]) is known[piece]:
                    self._bytes += known[piece].bytes
            while self._bytes > self._most:
                self._bytes -= self._known.popitem(last=False)[1].bytes
        return [JoinedEncoding([known[piece] for piece in pieces]) for pieces in cut]
