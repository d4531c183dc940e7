"""Raw JSON, bounded in size and depth; unsupported fields, refused where they would change an answer, else ignored and
named in a response header.
"""

import re
from collections.abc import Container, Mapping
from contextvars import ContextVar
from itertools import chain
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
import orjson
from msgspec import Meta, Raw

from server.api.errors import invalid

NOTHING: tuple[object, ...] = ("", [], False, None, {})  # values that ask for nothing

LONGEST = 1024  # bytes of a value that may ask for nothing

ABSENT: Any = msgspec.field(default_factory=Raw)  # default of unread fields


def refused(reason: str, *harmless: object) -> Meta:
    """A field refused for this reason unless its value is `harmless`, or asks for nothing."""
    return Meta(description=reason, extra_json_schema={"enum": list(harmless or NOTHING)})


UseLogitBias = Annotated[Raw, refused("is not supported; use logit_bias")]
UseGrammar = Annotated[Raw, refused("is not supported; use structured_outputs with grammar, in Lark")]
UseTools = Annotated[Raw, refused("is not supported; use tools with tool_choice 'required'")]
UseChoice = Annotated[Raw, refused("is not supported; use tools and tool_choice", *NOTHING, "none", "auto")]
UseTokenize = Annotated[Raw, refused("is not supported; shorten the prompt, /tokenize tells its length")]
UseLogprobs = Annotated[Raw, refused("is not supported; use logprobs, or /tokenize")]


class Foreign(msgspec.Struct, frozen=True, kw_only=True):
    """Known unsupported fields with reasons; values stay undecoded."""

    allowed_token_ids: UseLogitBias = ABSENT
    audio: Annotated[Raw, refused("only text comes out of this server")] = ABSENT
    bad_words: UseLogitBias = ABSENT
    chat_template: Annotated[Raw, refused("start the server with --chat-template instead")] = ABSENT
    documents: Annotated[Raw, refused("is not supported; put them into a message")] = ABSENT
    function_call: UseChoice = ABSENT
    functions: Annotated[Raw, refused("are not supported; use tools")] = ABSENT
    ebnf: UseGrammar = ABSENT  # SGLang
    guided_grammar: UseGrammar = ABSENT  # vLLM before structured_outputs, Aphrodite
    guided_whitespace_pattern: UseGrammar = ABSENT  # vLLM
    grammar_string: UseGrammar = ABSENT  # TabbyAPI, text-generation-webui
    structural_tag: UseTools = ABSENT  # SGLang
    logits_processors: Annotated[Raw, refused("is not supported")] = ABSENT
    modalities: Annotated[Raw, refused("only text comes out of this server", *NOTHING, ["text"])] = ABSENT
    prompt_embeds: Annotated[Raw, refused("only text and token ids can be read")] = ABSENT
    return_token_ids: UseLogprobs = ABSENT
    return_tokens_as_token_ids: UseLogprobs = ABSENT
    suffix: Annotated[Raw, refused("is not supported; leave it out")] = ABSENT
    skip_special_tokens: Annotated[Raw, refused("control tokens are always left out", None, True)] = ABSENT
    truncate_prompt_tokens: UseTokenize = ABSENT
    use_beam_search: Annotated[Raw, refused("is not supported; use n and a temperature")] = ABSENT
    web_search_options: Annotated[Raw, refused("this server looks nothing up")] = ABSENT


_REFUSED: Mapping[str, tuple[str, frozenset[bytes]]] = {
    name: (meta.description, frozenset({b"", *map(orjson.dumps, meta.extra_json_schema["enum"])}))
    for name, hint in get_type_hints(Foreign, include_extras=True).items()
    for meta in hint.__metadata__
}  # field -> reason, and harmless values without white space


def refuse_foreign(body: Foreign) -> None:
    """Raises ApiError 400 for the first field that asks for something."""
    for name, (reason, harmless) in _REFUSED.items():
        value: Raw = getattr(body, name)
        if len(memoryview(value)) > LONGEST or bytes(value).translate(None, b" \t\r\n") not in harmless:
            raise invalid(name, reason, "unsupported")


def refuse_asked(*fields: tuple[str, object, str]) -> None:
    """Raises ApiError 400 for the first (name, whether asked for, reason)."""
    for name, asks, reason in fields:
        if asks:
            raise invalid(name, reason, "unsupported")


IGNORED_HEADER = "x-lengthwise-ignored"
MOST_IGNORED = 32  # that fit into the header

# of the running request; None for lines of a batch
IGNORED: ContextVar[list[str] | None] = ContextVar("ignored", default=None)


def ignore(path: str, kind: str) -> None:
    """Name the path, of the client's kind."""
    names, name = IGNORED.get(), re.sub(r"[^\w.\[\]-]", "", f"{path}.{kind[:64]}", flags=re.ASCII)
    if names is not None and name not in names and len(names) < MOST_IGNORED:
        names.append(name)


def is_own(kind: str | None, own: Container[str | None], path: str) -> bool:
    """Any other kind is ignored."""
    if kind not in own:
        ignore(path, kind or "")
    return kind in own


T = TypeVar("T")


def required(value: T | None, path: str, why: str = "") -> T:
    """Raises ApiError 400 where it is missing."""
    if value is None:
        raise invalid(path, f"is missing{why}")
    return value


MAX_BYTES = 64 * 1024
MAX_DEPTH = 48


def is_given(value: object) -> bool:
    """Sent, and neither null nor false."""
    return bytes(value) not in (b"", b"null") if isinstance(value, Raw) else value not in (None, False)


def read_json(raw: bytes, path: str) -> Any:
    """The value at `path`; raises ApiError 400 unless it is JSON of bounded size and depth."""
    if len(raw) > MAX_BYTES:
        raise invalid(path, f"has {len(raw)} bytes, which is more than {MAX_BYTES}; shorten it")
    try:
        value = orjson.loads(raw)  # integers beyond 64 bits become floats
    except orjson.JSONDecodeError as error:
        raise invalid(path, f"is not valid JSON: {error}") from None
    if is_deep(value):
        raise invalid(path, f"is nested more than {MAX_DEPTH} deep; flatten it")
    return value


def is_deep(value: Any) -> bool:
    """Nested more than MAX_DEPTH deep."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):  # without recursion
        inside = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [*chain.from_iterable(inside)]
    return bool(level)


def read_object(raw: bytes, path: str) -> dict[str, Any]:
    """Raises ApiError 400 unless it is an object."""
    value = read_json(raw, path)
    if not isinstance(value, dict):
        raise invalid(path, "must be a JSON object")
    return value
