"""The bytes of tokens that need not be whole characters."""

from __future__ import annotations

import codecs
import json
import re
from typing import TYPE_CHECKING

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
