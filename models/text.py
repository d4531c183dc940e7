"""Tokenizer and chat template; thread-safe."""

import logging
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from inspect import signature
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeAlias

from jinja2 import Environment, TemplateError, meta
from tokenizers import Encoding, Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from models.catalog.checkpoint import LOCAL
from models.errors import TextError, translate_failures
from models.text_memory import JoinedEncoding, TextMemory, find_marks
from models.text_stream import ByteStream, TextStream, TokenPieces, byte_table, is_byte_level, longest_token
from models.threads import Deadline

log = logging.getLogger(__name__)

CONTROL = re.compile(r"\w.*[^\w\s]|[^\w\s].*\w")  # not a word or sign alone, as "</s>" or "[EOS]"
SAMPLE_ANSWER = "xyzzy"

Encoded: TypeAlias = Encoding | JoinedEncoding

PATIENCE = 10.0  # seconds for a chat template


class Text:
    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, *, chat_template: str | None = None, patience: float = PATIENCE
    ) -> None:
        self._tokenizer = tokenizer
        self._template = chat_template if chat_template is not None else tokenizer.chat_template
        self._backend: Tokenizer = tokenizer.backend_tokenizer
        self._backend.no_padding()
        self._backend.no_truncation()
        self._literal = Tokenizer.from_str(self._backend.to_str())
        self._literal.encode_special_tokens = True
        control = (token.content for token in self._backend.get_added_tokens_decoder().values() if token.special)
        self._control = sorted(control, key=len, reverse=True)  # so that none hides inside another
        self._deadline = Deadline(patience)
        marks = find_marks(self._backend)
        self._memory = None if marks is None else TextMemory(marks, partial(_encode, self._backend))
        self._limit: int | None = None

    @classmethod
    def load(cls, folder: Path, *, chat_template: str | None = None, patience: float = PATIENCE) -> Self:
        """Raises TextError without a safe tokenizer."""
        remedy = "copy the tokenizer files of the original model there"
        with translate_failures(lambda why: TextError(f"no usable tokenizer in {folder.name}: {why}; {remedy}")):
            tokenizer = AutoTokenizer.from_pretrained(folder, **LOCAL)
            if not isinstance(tokenizer, PreTrainedTokenizerFast):
                raise TextError(f"{folder.name} has no tokenizer.json; only fast tokenizers are supported")
            return cls(tokenizer, chat_template=chat_template, patience=patience)

    @cached_property
    def vocab_size(self) -> int:
        """Largest token id + 1."""
        return 1 + max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1)

    def limit_ids(self, vocab_size: int) -> None:
        """Refuse tokens beyond the network's `vocab_size`."""
        if self.vocab_size > vocab_size:
            self._limit = vocab_size
            first = self.token_string(vocab_size)
            log.warning("the network lacks the tokens from %d (%r) on: texts with them are refused", vocab_size, first)

    @cached_property
    def end_token_ids(self) -> frozenset[int]:
        """The tokenizer's end token, and the first control token that the template puts behind an assistant's text."""
        added = self._backend.get_added_tokens_decoder().items()
        control = {index for index, token in added if token.special and CONTROL.search(token.content)}
        question = {"role": "user", "content": "a"}
        found = [self._tokenizer.eos_token_id]
        for behind in ([], [question]):
            with suppress(TextError):  # no template, or for other conversations only
                turns = [question, {"role": "assistant", "content": SAMPLE_ANSWER}, *behind]
                _, spoken, rest = self._render(turns, {}, add_generation_prompt=False).rpartition(SAMPLE_ANSWER)
                ids = _encode(self._backend, [rest if spoken else ""], placed=False)[0].ids
                found += [index for index in ids if index in control][:1]
            if len(found) > 1:
                break
        return frozenset(control.intersection(found))

    @cached_property
    def takes_tools(self) -> bool:
        if not isinstance(self._template, str):
            return False
        try:
            return "tools" in meta.find_undeclared_variables(Environment().parse(self._template))
        except (TemplateError, RecursionError):  # reported on use
            return "tools" in self._template

    def warm_up(self) -> None:
        """The first encoding and the first answer's text take longer."""
        stream = self.stream()
        for token_id in self.encode("a"):
            stream.push(token_id)
        with suppress(TextError):  # no template, or for other conversations only
            self.encode_chat([{"role": "user", "content": "a"}])

    def to_json(self) -> str:
        """For the tokenizers library, without padding and truncation."""
        return str(self._backend.to_str())

    @cached_property
    def longest_token(self) -> int | None:
        """UTF-8 bytes; None where a token may stand for text of any length."""
        return longest_token(self._backend)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Control tokens count as such; adds a customary start token. Raises TextError."""
        return self._known(_encode(self._backend, [text], special=add_special_tokens, placed=False)[0].ids)

    def _known(self, ids: Iterable[int]) -> list[int]:
        """Raises TextError for tokens that the network lacks."""
        known = list(ids)
        if self._limit is not None and (last := max(known, default=0)) >= self._limit:
            token = self.token_string(last)
            raise TextError(f"the token {token!r} ({last}) is not in the network, whose ids end at {self._limit - 1}")
        return known

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        return self.encode_turns(messages, **options)[0]

    def encode_turns(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, object] = MappingProxyType({}),
        scope: str | None = None,
    ) -> tuple[list[int], slice, slice]:
        """Up to the assistant's turn, or the end of the last text. Also returns the places of a leading system text and
        of the others, all tokens counting as the latter where the template rewords them. Control tokens inside texts
        stay plain text, so that no user can forge a turn. What a `scope` had encoded is remembered for it.
        """
        if self._template is None:
            raise TextError("this model has no chat template: use /v1/completions, or start with --chat-template")
        nonce = secrets.token_hex(8)
        hidden: list[str] = []
        parts: Sequence[Any] = (list(messages), list(tools), variables)
        turns, offered, given = (part and self._veil(part, nonce, hidden) for part in parts)
        rendered = self._render(
            turns,
            given,
            tools=offered or None,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        pieces = self._encode_veiled(rendered.split(nonce), hidden, scope)
        edges = [_tokens_before(rendered[:edge].split(nonce), pieces) for edge in _find_texts(rendered, turns)]
        return self._known(chain.from_iterable(piece.ids for piece in pieces)), slice(*edges[:2]), slice(*edges[2:])

    def _veil(self, value: Any, nonce: str, hidden: list[str]) -> Any:
        """Replace control texts by markers, collecting them in `hidden`."""
        if isinstance(value, Mapping):
            return {self._veil(key, nonce, hidden): self._veil(inner, nonce, hidden) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._veil(inner, nonce, hidden) for inner in value]
        for text in self._control if isinstance(value, str) else ():
            if text in value:
                value = value.replace(text, f"{nonce}{len(hidden)}{nonce}")
                hidden.append(text)
        return value

    def _render(self, messages: list[dict[str, Any]], variables: dict[str, Any], **options: Any) -> str:
        render = self._tokenizer.apply_chat_template
        taken = sorted(variables.keys() & signature(render).parameters) if variables else ()
        if taken:
            raise TextError(f"the template's variables cannot be called {', '.join(taken)}: that has its own meaning")
        refusal = "the model's chat template refuses these messages"
        with translate_failures(lambda why: TextError(f"{refusal}: {why}")), self._deadline.limit():
            return str(render(messages, chat_template=self._template, tokenize=False, **options, **variables))

    def _encode_veiled(self, pieces: list[str], hidden: list[str], scope: str | None) -> list[Encoded]:
        # Every second piece is a hidden text's number, between nonces.
        pieces[1::2] = (hidden[int(number)] for number in pieces[1::2])
        coded: list[Any] = [None] * len(pieces)
        if self._memory is None or scope is None:
            coded[::2] = _encode(self._backend, pieces[::2])
        else:
            coded[::2] = self._memory.encode(pieces[::2], scope)
        coded[1::2] = _encode(self._literal, pieces[1::2])
        return coded

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return str(self._backend.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)[0])

    def decode_batch(self, lines: Sequence[Sequence[int]]) -> Sequence[str]:
        """Without control tokens."""
        return list(self._backend.decode_batch(list(map(list, lines)), skip_special_tokens=True))

    def stream(self) -> ByteStream | TextStream:
        return TextStream(self) if self._pieces is None else ByteStream(self._pieces)

    @cached_property
    def _pieces(self) -> TokenPieces | None:
        return TokenPieces(self.said_bytes) if is_byte_level(self._backend) else None

    def token_text(self, token_id: int) -> str:
        """Part of a character shows as U+FFFD."""
        return str(self._backend.decode([token_id], skip_special_tokens=False))

    def token_string(self, token_id: int) -> str:
        """As in the vocabulary, or empty."""
        return self._backend.id_to_token(token_id) or ""

    def token_bytes(self, token_id: int) -> bytes:
        """Maybe part of a character."""
        return self._byte_table.get(token_id) or self.token_text(token_id).encode()

    def said_bytes(self, token_id: int) -> bytes:
        """None for control tokens."""
        return self.token_bytes(token_id) if self.decode([token_id]) else b""

    @cached_property
    def _byte_table(self) -> dict[int, bytes]:
        return byte_table(self._backend)


# characters encoded without releasing other threads, a millisecond
SHORT = 1024


def _encode(coder: Tokenizer, texts: list[str], *, special: bool = False, placed: bool = True) -> list[Encoding]:
    """With `special` tokens if customary, and places if `placed`; long texts as a batch, which releases the interpreter
    lock.
    """
    with translate_failures(lambda why: TextError(f"the model's tokenizer cannot encode this text: {why}")):
        if sum(map(len, texts)) <= SHORT:
            return [coder.encode(text, add_special_tokens=special) for text in texts]
        encode = coder.encode_batch if placed else coder.encode_batch_fast
        return list(encode(texts, add_special_tokens=special))


def _find_texts(rendered: str, turns: Sequence[Mapping[str, Any]]) -> tuple[int, int, int, int]:
    """Ranges of a leading system text and of those behind, the last searched from the end."""
    texts = [str(turn.get("content") or "").strip() for turn in turns]
    system = texts.pop(0) if turns[:1] and turns[0].get("role") == "system" else ""
    first, last = (texts[0], texts[-1]) if texts else ("", "")
    told, end = rendered.find(system), rendered.rfind(last)
    begin = end if len(texts) < 2 else rendered.find(first, told + len(system))
    if min(told, begin, end) < 0:
        return 0, 0, 0, len(rendered)
    return told, told + len(system), begin, max(begin, end + len(last))


def _tokens_before(before: Sequence[str], pieces: Sequence[Encoded]) -> int:
    *whole, last = pieces[: len(before)]
    within = last.char_to_token(len(before[-1]))
    return sum(len(piece.ids) for piece in whole) + (len(last.ids) if within is None else within)
