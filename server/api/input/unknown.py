"""Fields of a body that its schema does not have: told to the client in a header, so that a typo can be found."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType

import msgspec
from aiohttp import web

from server.api.errors import bad_request

HEADER = "x-lengthwise-ignored"

MANY = 20_000
"""Ends of names in a body beyond which unknown ones are not looked for: a body of names alone would take long."""

MOST = 16
"""Names that the header tells at most."""

HARMLESS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "/v1/messages": frozenset({"metadata", "service_tier", "context_management", "inference_geo", "speed"}),
        "": frozenset(
            {
                "metadata",
                "mm_processor_kwargs",
                "prediction",
                "prompt_cache_key",
                "prompt_cache_retention",
                "reasoning",
                "reasoning_effort",
                "request_id",
                "safety_identifier",
                "service_tier",
                "spaces_between_special_tokens",
                "store",
                "user",
                "verbosity",
            }
        ),
    }
)
"""Beginnings of paths -> fields that such an API has and on which nothing here depends; "" for any other path."""

UNKNOWN = web.RequestKey("unknown_fields", tuple[str, ...])


def note_unknown(request: web.Request, names: tuple[str, ...], *, refused: bool) -> None:
    """Note the names of unknown fields for the response's header; raises ApiError 400 where they are `refused`."""
    path = next(start for start in HARMLESS if request.path.startswith(start))
    unknown = tuple(name for name in names if name not in HARMLESS[path])
    if unknown and refused:
        shown = ", ".join(repr(name[:64]) for name in unknown[:MOST])
        raise bad_request(f"{shown}: no such field here (--refuse-unknown-fields)", unknown[0][:64], "unknown_field")
    request[UNKNOWN] = unknown


def ignore(request: web.Request, names: Sequence[str]) -> None:
    """Name parts of a body that are passed over, though its schema has them, in the response's header too."""
    request[UNKNOWN] = (*request.get(UNKNOWN, ()), *dict.fromkeys(names))


def list_unknown(raw: bytes, schema: type, *, thoroughly: bool = False) -> tuple[str, ...]:
    """Names in a JSON object that a schema does not have, in their order; none of a body of very many names, unless
    it is to be looked at `thoroughly`.
    """
    if not thoroughly and raw.count(b'":') > MANY:
        return ()
    known = _list_known(schema)
    return tuple(name for name in msgspec.json.decode(raw, type=dict[str, msgspec.Raw]) if name not in known)


@cache
def without_unknown(schema: type) -> type:
    """The schema, for bodies without any other field."""
    return msgspec.defstruct(schema.__name__, [], bases=(schema,), forbid_unknown_fields=True, frozen=True)


@cache
def _list_known(schema: type) -> frozenset[str]:
    """Names of the fields that a schema has, kept since they take a millisecond to find."""
    return frozenset(field.encode_name for field in msgspec.structs.fields(schema))


def header_of(request: web.Request) -> str | None:
    """The header's value; None where there is nothing to tell."""
    names = request.get(UNKNOWN, ())
    return ", ".join(re.sub(r"[^!-+\--~]", "?", name[:64]) for name in names[:MOST]) or None
