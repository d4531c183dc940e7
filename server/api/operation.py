"""One method of one path of the API: who handles it, what goes in and out, and who may ask for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

Body: TypeAlias = type[msgspec.Struct]


@dataclass(frozen=True, slots=True)
class Parameter:
    """Something in the path, the query or the headers, with its JSON schema."""

    name: str
    where: str
    schema: dict[str, object]
    what: str


@dataclass(frozen=True, slots=True)
class Dialect:
    """Another API's manners, where they are not OpenAI's."""

    error: Body
    word: Callable[[Any, str], msgspec.Struct]
    """The body of an ApiError, for a request of this id."""
    id_header: str
    """The header that repeats the request's id."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    """Path as the router takes it, which may hold patterns."""
    handler: Handler
    name: str = ""
    """The operation's name in the OpenAPI document; empty for one that is not in it."""
    body: Body | None = None
    reply: Body | None = None
    events: tuple[Body, ...] = ()
    """Kinds of events of a streamed reply."""
    other: tuple[str, ...] = ()
    """Media types of replies that are no JSON of ours."""
    parameters: tuple[Parameter, ...] = ()
    rationed: bool = False
    """Whether it is work that counts as its key's, and that begins no more while the server drains, as all that
    generates."""
    counts: bool = False
    """Whether it tells how long or how much a call would be, which has an account of its own in its key's quota."""
    generates: bool = False
    """Whether it ends in the queue, so that admission and quotas apply to it."""
    open: bool = False
    """Whether it needs no key."""
    dialect: Dialect | None = None
    other_body: str = ""
    """Media type of a body that is no JSON of ours."""

    @property
    def template(self) -> str:
        """The path without patterns."""
        return self.path.replace(":.+", "")

    @property
    def summary(self) -> str:
        """The handler's docstring up to the errors that it raises: the operation in one sentence."""
        return re.split(r"; raises |\.?\n|\.$", self.handler.__doc__ or "", maxsplit=1)[0]


BY_HANDLER: web.AppKey[Mapping[Handler, Operation]] = web.AppKey("operations")
"""An application's operations. Two of one handler differ only in their paths."""


async def _find_nothing(request: web.Request) -> web.StreamResponse:
    raise web.HTTPNotFound


NOWHERE = Operation("get", "", _find_nothing)
"""The operation of a request at whose path there is none."""

OPERATION = web.RequestKey("operation", Operation)
"""A request's operation, as the router matched it, and never one that is put together from what the client says."""
