"""Fields of OpenAI's API and of other servers' that would change an answer and that this server cannot honour.

They are refused where they ask for anything; passed over in silence, the client would take another answer for its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Raw

from server.api.errors import bad_request

NOTHING = frozenset({b"", b"null", b"false", b"[]", b"{}", b'""'})
"""Values, without white space, that ask for nothing in most of these fields."""
UNLESS_FALSE = frozenset({b"", b"null", b"true"})

ABSENT: Any = msgspec.field(default_factory=Raw)
"""The default of a field whose value is not read."""


class Foreign(msgspec.Struct, frozen=True, kw_only=True):
    """What is known and refused; the values are not even read."""

    add_generation_prompt: Raw = ABSENT
    allowed_token_ids: Raw = ABSENT
    audio: Raw = ABSENT
    bad_words: Raw = ABSENT
    chat_template: Raw = ABSENT
    continue_final_message: Raw = ABSENT
    documents: Raw = ABSENT
    function_call: Raw = ABSENT
    guided_choice: Raw = ABSENT
    guided_grammar: Raw = ABSENT
    guided_json: Raw = ABSENT
    guided_regex: Raw = ABSENT
    logits_processors: Raw = ABSENT
    modalities: Raw = ABSENT
    prompt_embeds: Raw = ABSENT
    return_token_ids: Raw = ABSENT
    return_tokens_as_token_ids: Raw = ABSENT
    skip_special_tokens: Raw = ABSENT
    truncate_prompt_tokens: Raw = ABSENT
    use_beam_search: Raw = ABSENT
    web_search_options: Raw = ABSENT


_REASONS: Mapping[str, str] = MappingProxyType(
    {
        "add_generation_prompt": "an answer always begins a turn of its own",
        "allowed_token_ids": "is not supported; use logit_bias",
        "audio": "only text comes out of this server",
        "bad_words": "is not supported; use logit_bias",
        "chat_template": "start the server with --chat-template instead",
        "continue_final_message": "is not supported; put the turn into a prompt for /v1/completions",
        "documents": "is not supported; put them into a message",
        "function_call": "is not supported; use tools and tool_choice",
        "guided_choice": "is not supported; use structured_outputs with choice",
        "guided_grammar": "is not supported; use structured_outputs with grammar",
        "guided_json": "is not supported; use response_format, or structured_outputs with json",
        "guided_regex": "is not supported; use structured_outputs with regex",
        "logits_processors": "is not supported",
        "modalities": "only text comes out of this server",
        "prompt_embeds": "only text and token ids can be read",
        "return_token_ids": "is not supported; use logprobs, or /tokenize",
        "return_tokens_as_token_ids": "is not supported; use logprobs, or /tokenize",
        "skip_special_tokens": "control tokens are always left out",
        "truncate_prompt_tokens": "is not supported; shorten the prompt, /tokenize tells its length",
        "use_beam_search": "is not supported; use n and a temperature",
        "web_search_options": "this server looks nothing up",
    }
)
_HARMLESS: Mapping[str, frozenset[bytes]] = MappingProxyType(
    {
        "add_generation_prompt": UNLESS_FALSE,
        "function_call": NOTHING | {b'"none"', b'"auto"'},
        "modalities": NOTHING | {b'["text"]'},
        "skip_special_tokens": UNLESS_FALSE,
    }
)


def refuse_foreign(body: Foreign) -> None:
    """Raise ApiError 400 for the first of these fields that asks for something."""
    for name, reason in _REASONS.items():
        value = bytes(getattr(body, name)).translate(None, b" \t\r\n")
        if value not in _HARMLESS.get(name, NOTHING):
            raise bad_request(f"{name}: {reason}", name, "unsupported")
