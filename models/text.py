"""Text to token ids and back: chat template, encoding and decoding.

It knows no request and no batch. Everything here may be called from any thread.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from inspect import signature
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, TemplateError, meta
from tokenizers import Encoding, Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from models.errors import TextError, translate_failures
from models.text_stream import byte_table, longest_token
from models.threads import Deadline

log = logging.getLogger(__name__)

CONTROL = re.compile(r"\w.*[^\w\s]|[^\w\s].*\w")  # neither a word nor blanks or signs alone, as "</s>" or "[EOS]"
SAMPLE_ANSWER = "xyzzy"

PATIENCE = 10.0  # seconds that a chat template may take for one conversation


class Text:
    """A model's tokenizer and chat template."""

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
        self._control = _control_texts(self._backend)
        self._deadline = Deadline(patience)
        self._limit: int | None = None

    @classmethod
    def load(cls, folder: Path, *, chat_template: str | None = None, patience: float = PATIENCE) -> Text:
        """Read the tokenizer in `folder`; raises TextError when there is none that is safe to use."""
        remedy = "copy the tokenizer files of the original model there"
        with translate_failures(lambda why: TextError(f"no usable tokenizer in {folder.name}: {why}; {remedy}")):
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
            if not isinstance(tokenizer, PreTrainedTokenizerFast):
                raise TextError(f"{folder.name} has no tokenizer.json; only fast tokenizers are supported")
            return cls(tokenizer, chat_template=chat_template, patience=patience)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        return 1 + max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1)

    def limit_ids(self, vocab_size: int) -> None:
        """Refuse texts with tokens that a network of `vocab_size` tokens lacks."""
        if self.vocab_size > vocab_size:
            self._limit = vocab_size
            first = self.token_string(vocab_size)
            log.warning("the network lacks the tokens from %d (%r) on: texts with them are refused", vocab_size, first)

    @cached_property
    def end_token_ids(self) -> frozenset[int]:
        """Control tokens that end an answer: the tokenizer's own end token, and the first that the chat template puts
        behind an assistant's text: at the end of a conversation, or else in front of the next turn.
        """
        added = self._backend.get_added_tokens_decoder().items()
        control = {index for index, token in added if token.special and CONTROL.search(token.content)}
        question = {"role": "user", "content": "a"}
        found = [self._tokenizer.eos_token_id]
        for behind in ([], [question]):
            with suppress(TextError):  # there may be no template, or one that takes other conversations only
                turns = [question, {"role": "assistant", "content": SAMPLE_ANSWER}, *behind]
                rendered = self._render(turns, {}, add_generation_prompt=False)
                _, spoken, rest = rendered.rpartition(SAMPLE_ANSWER)
                ids = _encode(self._backend, [rest if spoken else ""], placed=False)[0].ids
                found += [index for index in ids if index in control][:1]
            if len(found) > 1:
                break
        return frozenset(control.intersection(found))

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the chat template itself words tools, calls and their results."""
        if not isinstance(self._template, str):
            return False
        try:
            return "tools" in meta.find_undeclared_variables(Environment().parse(self._template))
        except (TemplateError, RecursionError):  # an extension of jinja, or wrong, which its use will tell
            return "tools" in self._template

    def warm_up(self) -> None:
        """Compile the chat template and encode a text, which takes longer the first time."""
        self.encode("a")
        with suppress(TextError):  # there may be no template, or one that takes other conversations only
            self.encode_chat([{"role": "user", "content": "a"}])

    def to_json(self) -> str:
        """The tokenizer in the format of the tokenizers library, without padding and truncation."""
        return str(self._backend.to_str())

    @cached_property
    def longest_token(self) -> int | None:
        """UTF-8 bytes of the longest token: no text of n tokens has more than n times as many. None where a token may
        stand for text of any length, so that only encoding tells how many tokens a text has.
        """
        return longest_token(self._backend)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Encode a prompt as it stands: control tokens in it count as such, and a start token is added if customary.

        Raises TextError for what the tokenizer cannot encode.
        """
        return self._known(_encode(self._backend, [text], special=add_special_tokens, placed=False)[0].ids)

    def _known(self, ids: Iterable[int]) -> list[int]:
        """Token ids, all of which the network has. Raises TextError."""
        known = list(ids)
        if self._limit is not None and (last := max(known, default=0)) >= self._limit:
            token = self.token_string(last)
            raise TextError(f"the token {token!r} ({last}) is not in the network, whose ids end at {self._limit - 1}")
        return known

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """Encode messages by the chat template, as `encode_turns` does with these options."""
        return self.encode_turns(messages, **options)[0]

    def encode_turns(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, object] = MappingProxyType({}),
    ) -> tuple[list[int], slice, slice]:
        """Encode messages by the chat template, up to where the assistant speaks, or to the end of the last message's
        text; `variables` are for the template, and so are `tools` where it `takes_tools`. Behind the ids come the
        places of the first message's text, if it is the system's, and of the others' texts; all tokens count as the
        latter where the template words texts anew.

        What looks like a control token inside any of them stays plain text, so no user can forge a turn.
        """
        if self._template is None:
            raise TextError("this model has no chat template: use /v1/completions, or start with --chat-template")
        nonce = secrets.token_hex(8)
        hidden: list[str] = []
        turns, offered, given = (self._veil(part, nonce, hidden) for part in (list(messages), list(tools), variables))
        rendered = self._render(
            turns,
            given,
            tools=offered or None,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        pieces = self._encode_veiled(rendered.split(nonce), hidden)
        edges = [_tokens_before(rendered[:edge].split(nonce), pieces) for edge in _find_texts(rendered, turns)]
        return self._known(chain.from_iterable(piece.ids for piece in pieces)), slice(*edges[:2]), slice(*edges[2:])

    def _veil(self, value: Any, nonce: str, hidden: list[str]) -> Any:
        """Put a marker in place of each control text in a value; the texts are appended to `hidden`."""
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
        """Messages as the chat template words them; `options` are the library's own."""
        render = self._tokenizer.apply_chat_template
        taken = sorted(variables.keys() & signature(render).parameters)
        if taken:
            raise TextError(f"the template's variables cannot be called {', '.join(taken)}: that has its own meaning")
        refusal = "the model's chat template refuses these messages"
        with translate_failures(lambda why: TextError(f"{refusal}: {why}")), self._deadline.limit():
            return str(render(messages, chat_template=self._template, tokenize=False, **options, **variables))

    def _encode_veiled(self, pieces: list[str], hidden: list[str]) -> list[Encoding]:
        # Between two nonces stands the number of a hidden text: every second piece.
        pieces[1::2] = (hidden[int(number)] for number in pieces[1::2])
        coded: list[Any] = [None] * len(pieces)
        for first, coder in enumerate((self._backend, self._literal)):
            coded[first::2] = _encode(coder, pieces[first::2])
        return coded

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Decode token ids, control tokens left out or written out."""
        return str(self._backend.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)[0])

    def token_text(self, token_id: int) -> str:
        """One token by itself; part of a character shows as U+FFFD."""
        return str(self._backend.decode([token_id], skip_special_tokens=False))

    def token_string(self, token_id: int) -> str:
        """One token as the vocabulary spells it; empty for an id that it does not have."""
        return self._backend.id_to_token(token_id) or ""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for, also where they are only part of a character."""
        return self._byte_table.get(token_id) or self.token_text(token_id).encode()

    def said_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to an answer; none for control tokens."""
        return self.token_bytes(token_id) if self.decode([token_id]) else b""

    @cached_property
    def _byte_table(self) -> dict[int, bytes]:
        return byte_table(self._backend)


# Characters encoded while other threads wait, for a millisecond; for more the library wakes threads of its own.
SHORT = 1024


def _encode(coder: Tokenizer, texts: list[str], *, special: bool = False, placed: bool = True) -> list[Encoding]:
    """Each text encoded, with `special` tokens if customary, and known places of its tokens unless they need not be
    `placed`. Long ones as a batch: a text by itself is encoded without letting other threads run."""
    with translate_failures(lambda why: TextError(f"the model's tokenizer cannot encode this text: {why}")):
        if sum(map(len, texts)) <= SHORT:
            return [coder.encode(text, add_special_tokens=special) for text in texts]
        encode = coder.encode_batch if placed else coder.encode_batch_fast
        return list(encode(texts, add_special_tokens=special))


def _find_texts(rendered: str, turns: Sequence[Mapping[str, Any]]) -> tuple[int, int, int, int]:
    """Where in a conversation the system's text at its beginning begins and ends, and where the texts behind it do. The
    last is looked for from the end: there the template has the fewest words that a text could be mistaken for."""
    texts = [str(turn.get("content") or "").strip() for turn in turns]
    system = texts.pop(0) if turns[:1] and turns[0].get("role") == "system" else ""
    first, last = (texts[0], texts[-1]) if texts else ("", "")
    told, end = rendered.find(system), rendered.rfind(last)
    begin = end if len(texts) < 2 else rendered.find(first, told + len(system))
    if min(told, begin, end) < 0:
        return 0, 0, 0, len(rendered)
    return told, told + len(system), begin, max(begin, end + len(last))


def _tokens_before(before: Sequence[str], pieces: Sequence[Encoding]) -> int:
    """Tokens of a text in pieces that stand before a place, given the pieces' texts up to there."""
    *whole, last = pieces[: len(before)]
    within = last.char_to_token(len(before[-1]))
    return sum(len(piece.ids) for piece in whole) + (len(last.ids) if within is None else within)


def _control_texts(backend: Tokenizer) -> list[str]:
    """Texts that encode to control tokens, longest first, so that none is hidden inside another."""
    added = backend.get_added_tokens_decoder().values()
    return sorted((token.content for token in added if token.special), key=len, reverse=True)
