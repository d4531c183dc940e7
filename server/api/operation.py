"""An operation: one method of one path."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

Body = type[msgspec.Struct]


@dataclass(frozen=True, slots=True)
class Parameter:
    """In path, query or headers."""

    name: str
    where: str
    schema: dict[str, object]
    what: str


@dataclass(frozen=True, slots=True)
class Dialect:
    error: Body
    word: Callable[[Any, str], msgspec.Struct]  # error body for a request id
    id_header: str  # repeats the request's id


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str  # for the router, may hold patterns
    handler: Handler
    name: str = ""  # in the document; empty hides it
    body: Body | None = None
    reply: Body | None = None
    events: tuple[Body, ...] = ()  # of a stream
    other: tuple[str, ...] = ()  # media types other than our JSON
    parameters: tuple[Parameter, ...] = ()
    rationed: bool = False  # work that counts for its key, and is refused while draining
    counts: bool = False  # has a quota of its own
    generates: bool = False  # queued, so subject to admission and quotas
    open: bool = False  # needs no key
    dialect: Dialect | None = None
    other_body: str = ""  # media type other than our JSON

    @property
    def template(self) -> str:
        return self.path.replace(":.+", "")


# two of one handler differ only in their paths
BY_HANDLER: web.AppKey[Mapping[Handler, Operation]] = web.AppKey("operations")


async def _find_nothing(request: web.Request) -> web.StreamResponse:
    raise web.HTTPNotFound


NOWHERE = Operation("get", "", _find_nothing)  # for unknown paths

OPERATION = web.RequestKey("operation", Operation)  # as matched by the router
