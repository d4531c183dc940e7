"""Incremental decoding without partial characters, and stop strings."""

from __future__ import annotations

import codecs
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tokenizers import Tokenizer


BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")  # byte fallback


def byte_table(backend: Tokenizer) -> dict[int, bytes]:
    """Bytes of tokens; with byte fallback only those of byte tokens."""
    vocab = backend.get_vocab(with_added_tokens=False).items()
    if _decodes(backend, "\u0120", " "):
        alphabet = _byte_alphabet()
        return {index: bytes(alphabet[c] for c in token) for token, index in vocab if all(c in alphabet for c in token)}
    if _decodes(backend, "<0x41>", "A"):
        return {index: bytes.fromhex(token[3:5]) for token, index in vocab if BYTE_TOKEN.fullmatch(token)}
    return {}


def longest_token(backend: Tokenizer) -> int | None:
    """UTF-8 bytes in a complete byte-level vocabulary; None where normalization, unknown text or blanks may add to a
    token.
    """
    parts, vocab = json.loads(backend.to_str()), backend.get_vocab(with_added_tokens=False)
    added = parts["added_tokens"]
    splits = parts["pre_tokenizer"] or {}
    splits = splits.get("pretokenizers", [splits])
    whole = (
        (parts["normalizer"], parts["model"]["type"], parts["model"].get("end_of_word_suffix") or "")
        == (None, "BPE", "")
        and {"ByteLevel"} <= {split.get("type") for split in splits} <= {"ByteLevel", "Digits", "Split"}
        and not any(split.get("behavior") == "Removed" for split in splits)
        and not any(token["lstrip"] or token["rstrip"] for token in added)
        and _byte_alphabet().keys() <= vocab.keys()
    )
    return max(map(len, [*vocab, *(token["content"].encode() for token in added)])) if whole else None


def count_cut_off(data: bytes) -> int:
    """Trailing bytes of an incomplete UTF-8 character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return len(decoder.getstate()[0])


def _decodes(backend: Tokenizer, token: str, text: str) -> bool:
    return backend.decoder is not None and bool(backend.decoder.decode([token]) == text)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's table."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


REPLACEMENT = "\ufffd"  # for invalid bytes

LONGEST_WAIT = 64  # tokens until invalid bytes are shown; decoding them again each time would take quadratic time


class TextDecoder(Protocol):
    """Part of models.text.Text."""

    def decode(self, ids: Sequence[int]) -> str: ...
    def said_bytes(self, token_id: int) -> bytes: ...


class TextStream:
    """The joined pieces equal the whole decoding, but for an incomplete last character."""

    def __init__(self, text: TextDecoder) -> None:
        self._text = text
        self._ids: list[int] = []
        self._shown = 0  # ids [0, shown) are out
        self._from = 0  # context of decoding, since spacing depends on it

    def push(self, token_id: int) -> str:
        """Empty while a character is incomplete."""
        self._ids.append(token_id)
        piece = self._pending()
        waits = len(self._ids) - self._shown
        if waits < LONGEST_WAIT and (not piece or piece.endswith(REPLACEMENT)):
            return ""
        self._from, self._shown = self._shown, len(self._ids)
        return piece

    def flush(self) -> str:
        """Without an incomplete character."""
        piece = self._pending()
        if piece.endswith(REPLACEMENT):
            piece = self._whole()
        self._from = self._shown = len(self._ids)
        return piece

    def _pending(self, end: int | None = None) -> str:
        context = self._text.decode(self._ids[self._from : self._shown])
        return self._text.decode(self._ids[self._from : end])[len(context) :]

    def _whole(self) -> str:
        """Without an incomplete character; invalid bytes stay, as U+FFFD."""
        said = [(place, self._text.said_bytes(self._ids[place])) for place in range(self._shown, len(self._ids))]
        cut, end = count_cut_off(b"".join(data for _, data in said)), len(self._ids)
        while cut and len(said[-1][1]) <= cut:
            end, data = said.pop()
            cut -= len(data)
        piece = self._pending(end)
        return piece[:-1] if cut else piece


class StopMatcher:
    """Holds back what may become a stop string."""

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        self._by_letter: defaultdict[str, list[str]] = defaultdict(list)  # for speed
        for stop in sorted(stops):
            self._by_letter[stop[0]].append(stop)
        self._include = include
        self._held = ""

    def push(self, piece: str) -> tuple[str, str | None]:
        """Text to show, and the stop string that ends it."""
        if not self._by_letter:
            return piece, None
        text, self._held = self._held + piece, ""
        end = len(text)
        for at, letter in enumerate(text):
            for stop in self._by_letter.get(letter, ()):
                if text.startswith(stop, at):
                    return text[: at + len(stop) if self._include else at], stop
                if end == len(text) and stop.startswith(text[at:]):
                    end = at
        self._held = text[end:]
        return text[:end], None

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
