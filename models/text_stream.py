"""Incremental decoding without partial characters, and stop strings."""

from __future__ import annotations

import codecs
import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
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


def is_byte_level(backend: Tokenizer) -> bool:
    """Whether a token's bytes do not depend on its neighbours."""
    return (json.loads(backend.to_str())["decoder"] or {}).get("type") == "ByteLevel"


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
    def decode_batch(self, lines: Sequence[Sequence[int]]) -> Sequence[str]: ...
    def said_bytes(self, token_id: int) -> bytes: ...


class TokenPieces(dict[int, str | bytes]):
    """By token id, filled on use: text where its bytes are whole characters."""

    def __init__(self, said_bytes: Callable[[int], bytes]) -> None:
        self._said_bytes = said_bytes

    def __missing__(self, token_id: int) -> str | bytes:
        said = self._said_bytes(token_id)
        try:
            piece: str | bytes = said.decode()
        except UnicodeDecodeError:
            piece = said
        return self.setdefault(token_id, piece)


class ByteStream:
    """As TextStream, where a token is the same bytes everywhere; a twentieth of its time."""

    def __init__(self, pieces: TokenPieces) -> None:
        self._pieces = pieces
        self._decoder: codecs.IncrementalDecoder | None = None  # inside a character

    def push(self, token_id: int) -> str:
        piece = self._pieces[token_id]
        if self._decoder is None:
            if isinstance(piece, str):
                return piece
            self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = self._decoder.decode(piece.encode() if isinstance(piece, str) else piece)
        if not self._decoder.getstate()[0]:
            self._decoder = None
        return text

    def flush(self) -> str:
        self._decoder = None
        return ""


class TextStream:
    """The joined pieces equal the whole decoding, but for an incomplete last character."""

    def __init__(self, text: TextDecoder) -> None:
        self._text = text
        self._ids: list[int] = []
        self._shown = 0  # ids [0, shown) are out
        self._from = 0  # context of decoding, since spacing depends on it
        self._foreseen: Sequence[str] | None = None  # of `windows`

    def windows(self, token_id: int) -> tuple[list[int], list[int]]:
        """What `push` of this token decodes."""
        return self._ids[self._from : self._shown], [*self._ids[self._from :], token_id]

    def foresee(self, texts: Sequence[str]) -> None:
        self._foreseen = texts

    def push(self, token_id: int) -> str:
        """Empty while a character is incomplete."""
        context, whole = self._foreseen or self._text.decode_batch(self.windows(token_id))
        self._ids.append(token_id)
        self._foreseen, piece = None, whole[len(context) :]
        if len(self._ids) - self._shown < LONGEST_WAIT and (not piece or piece.endswith(REPLACEMENT)):
            return ""
        self._from, self._shown = self._shown, len(self._ids)
        return piece

    def flush(self) -> str:
        """Without an incomplete character; invalid bytes stay, as U+FFFD."""
        piece = self._pending()
        if piece.endswith(REPLACEMENT):
            said = [(place, self._text.said_bytes(self._ids[place])) for place in range(self._shown, len(self._ids))]
            decoder, end = codecs.getincrementaldecoder("utf-8")("replace"), len(self._ids)
            decoder.decode(b"".join(data for _, data in said))
            cut = len(decoder.getstate()[0])  # bytes of an incomplete character
            while cut and len(said[-1][1]) <= cut:
                end, data = said.pop()
                cut -= len(data)
            piece = self._pending(end)
            piece = piece[:-1] if cut else piece
        self._from = self._shown = len(self._ids)
        return piece

    def _pending(self, end: int | None = None) -> str:
        context, whole = self._text.decode_batch((self._ids[self._from : self._shown], self._ids[self._from : end]))
        return whole[len(context) :]


def foresee_together(text: TextDecoder, pairs: Sequence[tuple[TextStream, int]]) -> None:
    """Decode the next token of each stream, in one call: a fifth of the time."""
    texts = text.decode_batch([line for stream, token in pairs for line in stream.windows(token)])
    for place, (stream, _) in enumerate(pairs):
        stream.foresee(texts[2 * place : 2 * place + 2])


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
