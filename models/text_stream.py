"""An answer's text as its tokens come: decoding that never emits half a character, the bytes of tokens, and the search
for stop strings.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tokenizers import Tokenizer


BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")
"""A token for one byte, in vocabularies of characters that fall back on bytes."""


def byte_table(backend: Tokenizer) -> dict[int, bytes]:
    """The bytes of each token of a byte-level vocabulary; of one that falls back on bytes, those of its byte tokens."""
    vocab = backend.get_vocab(with_added_tokens=False).items()
    if _decodes(backend, "\u0120", " "):
        alphabet = _byte_alphabet()
        return {index: bytes(alphabet[c] for c in token) for token, index in vocab if all(c in alphabet for c in token)}
    if _decodes(backend, "<0x41>", "A"):
        return {index: bytes.fromhex(token[3:5]) for token, index in vocab if BYTE_TOKEN.fullmatch(token)}
    return {}


def longest_token(backend: Tokenizer) -> int | None:
    """UTF-8 bytes of the longest token of a byte-level vocabulary that has every byte. None for others, where a token
    may stand for more than its name: after normalizing, for unknown text, or with the blanks around it.
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
    """Count the bytes at the end that begin a character of UTF-8 without ending it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return len(decoder.getstate()[0])


def _decodes(backend: Tokenizer, token: str, text: str) -> bool:
    return backend.decoder is not None and bool(backend.decoder.decode([token]) == text)


def _byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level vocabularies (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


REPLACEMENT = "\ufffd"
"""The character that decoders put where bytes do not, or not yet, make a character."""

LONGEST_WAIT = 64
"""Tokens after which bytes that still make no character are shown as U+FFFD: real characters need a few at most,
and decoding an endless run of stray bytes again at each token would cost quadratic time."""


class Decoder(Protocol):
    """The part of models.text.Text that turns token ids into text."""

    def decode(self, ids: Sequence[int]) -> str: ...
    def said_bytes(self, token_id: int) -> bytes: ...


class TextStream:
    """Decodes one answer token by token. The pieces joined equal the decoding of the whole, but for a character that is
    cut off at its end.
    """

    def __init__(self, text: Decoder) -> None:
        self._text = text
        self._ids: list[int] = []
        self._shown = 0  # ids [0, shown) are out
        self._from = 0  # ids [from, shown) are decoded again as context, since spacing can depend on them

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty while a character is incomplete."""
        self._ids.append(token_id)
        piece = self._pending()
        waits = len(self._ids) - self._shown
        if waits < LONGEST_WAIT and (not piece or piece.endswith(REPLACEMENT)):
            return ""
        self._from, self._shown = self._shown, len(self._ids)
        return piece

    def flush(self) -> str:
        """The rest of the text when no token follows, without a character that is cut off at its end."""
        piece = self._pending()
        if piece.endswith(REPLACEMENT):
            piece = self._whole()
        self._from = self._shown = len(self._ids)
        return piece

    def _pending(self, end: int | None = None) -> str:
        context = self._text.decode(self._ids[self._from : self._shown])
        return self._text.decode(self._ids[self._from : end])[len(context) :]

    def _whole(self) -> str:
        """The pending text without the bytes at its end that only begin a character.

        Bytes that can never become one stay, as U+FFFD.
        """
        said = [(place, self._text.said_bytes(self._ids[place])) for place in range(self._shown, len(self._ids))]
        cut, end = count_cut_off(b"".join(data for _, data in said)), len(self._ids)
        while cut and len(said[-1][1]) <= cut:
            end, data = said.pop()
            cut -= len(data)
        piece = self._pending(end)
        return piece[:-1] if cut else piece


class StopMatcher:
    """Watches a text for stop strings; holds back what may become one."""

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        self._by_letter: defaultdict[str, list[str]] = defaultdict(list)  # so that many cost little
        for stop in sorted(stops):
            self._by_letter[stop[0]].append(stop)
        self._include = include
        self._held = ""

    def push(self, piece: str) -> tuple[str, str | None]:
        """Returns the text that may be shown, and the stop string that ends it, if one does."""
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
        """The text that was held back and did not become a stop string."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`, but is not all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
