"""A conversation with a running server, as its client: history, one streamed answer at a time, clear failures.

What to do with each piece of text is the caller's business. A terminal may have it as Markdown: a whole block is
printed for good, the last one anew with each piece.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown

from loadgen.client.transcript import EventParser
from models.errors import UserError
from server.api.output.sse import HEADER, Progress, progress_in

TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10)
"""An answer may take as long as it likes, a connection may not."""

CONTROLS = dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - {ord("\n"), ord("\t")})
"""Characters that could steer a terminal: C0 but newline and tab, DEL, and C1."""


@dataclass(frozen=True, slots=True)
class Took:
    """Tokens and seconds that an answer took."""

    read: int
    generated: int
    first: float
    """Seconds to the first piece of the answer."""
    total: float

    def __str__(self) -> str:
        speed = (self.generated - 1) / (self.total - self.first) if self.total > self.first else 0.0
        return (
            f"{self.read} tokens in, {self.generated} out; first token after {self.first:.2f} s, "
            f"then {speed:.1f} tokens/s; {self.total:.2f} s in all"
        )


@dataclass(slots=True)
class Conversation:
    """The turns so far and how to ask for the next."""

    url: str
    model: str | None = None
    system: str | None = None
    options: dict[str, float | int] = field(default_factory=dict)
    """Further fields of the request, such as temperature."""
    key: str | None = field(default=None, repr=False)
    """The API key, where the server wants one."""
    turns: list[dict[str, str]] = field(default_factory=list)
    took: Took | None = None
    """Time and tokens of the latest whole answer; None before there is one, or from a server that does not count."""

    @property
    def messages(self) -> list[dict[str, str]]:
        """The turns, behind the system message where there is one."""
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.turns]

    def reset(self) -> None:
        """Forget every turn."""
        self.turns.clear()

    async def connect(self) -> str:
        """Ask the server for its model unless one was named; returns the name. Raises UserError."""
        if self.model is None:
            async with self._session() as session:
                listed = await _fetch(session, self._endpoint("models"))
            try:
                self.model = drop_controls(str(listed["data"][0]["id"]))
            except (LookupError, TypeError) as error:
                raise UserError(f"{self.url} is no Lengthwise server; name one with --url") from error
        return self.model

    async def say(
        self, text: str, show: Callable[[str], object], queued: Callable[[Progress], object] = lambda progress: None
    ) -> None:
        """Take a turn, pass its progress in line to `queued` and each piece of the answer to `show`; raises UserError.

        What is shown has no control characters. When it is cancelled, what was said so far stays in the conversation;
        when it fails, the turn is undone.
        """
        self.turns.append({"role": "user", "content": text})
        pieces: list[str] = []
        begin, first, self.took = time.monotonic(), None, None
        try:
            async with aclosing(self._answer(queued)) as answer:
                async for event in answer:
                    now = time.monotonic() - begin
                    if piece := _content(event):
                        first = now if first is None else first
                        pieces.append(piece)
                        show(drop_controls(piece))
                    if usage := event.get("usage"):
                        read, generated = usage["prompt_tokens"], usage["completion_tokens"]
                        self.took = Took(read, generated, now if first is None else first, now)
        except UserError:
            self.turns.pop()
            raise
        except BaseException:
            self._remember(pieces)
            raise
        self._remember(pieces)

    def _remember(self, pieces: list[str]) -> None:
        self.turns.append({"role": "assistant", "content": "".join(pieces)})

    def _session(self) -> aiohttp.ClientSession:
        headers = {"Content-Type": "application/json", HEADER: "1"} | (
            {"Authorization": f"Bearer {self.key}"} if self.key else {}
        )
        return aiohttp.ClientSession(timeout=TIMEOUT, headers=headers)

    def _endpoint(self, path: str) -> str:
        return f"{self.url.rstrip('/').removesuffix('/v1')}/v1/{path}"

    async def _answer(self, queued: Callable[[Progress], object]) -> AsyncGenerator[Any, None]:
        asked = {"stream": True, "stream_options": {"include_usage": True}}
        body = {"model": self.model, "messages": self.messages, **asked, **self.options}

        def read_comment(comment: bytes) -> None:
            if (progress := progress_in(comment.decode())) is not None:
                queued(progress)

        parser = EventParser(read_comment)
        async with self._session() as session:
            try:
                async with session.post(self._endpoint("chat/completions"), data=orjson.dumps(body)) as response:
                    await _require_success(response)
                    async for chunk in response.content.iter_any():
                        for data in parser.feed(chunk):
                            if data == b"[DONE]":
                                return
                            yield orjson.loads(data)
            except aiohttp.ClientError as error:
                raise _unreachable(self.url, error) from error
        raise UserError("the answer was cut off: the server closed the connection")


def drop_controls(text: str) -> str:
    """A text without the characters that could steer a terminal; each goes by itself, so pieces need no memory."""
    return text.translate(CONTROLS)


def _content(event: Any) -> str:
    if "error" in event:
        raise UserError(drop_controls(str(event["error"]["message"])))
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])


async def _fetch(session: aiohttp.ClientSession, url: str) -> Any:
    try:
        async with session.get(url) as response:
            await _require_success(response)
            return orjson.loads(await response.read())
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise _unreachable(url, error) from error


async def _require_success(response: aiohttp.ClientResponse) -> None:
    if response.status == 200:
        return
    try:
        message = drop_controls(str(orjson.loads(await response.read())["error"]["message"]))
    except (ValueError, KeyError, TypeError):
        message = f"{response.url} answers with status {response.status}: is this a Lengthwise server?"
    raise UserError(message)


def _unreachable(url: str, error: Exception) -> UserError:
    if isinstance(error, aiohttp.InvalidURL | ValueError):
        return UserError(f"{url} is no Lengthwise server; name one with --url")
    if isinstance(error, aiohttp.ClientConnectorError | TimeoutError):
        return UserError(f"no server answers at {url}: start one with `lengthwise serve`, or name another with --url")
    return UserError(f"the connection to {url} broke: {error}")


FENCE = "```"


class MarkdownPrinter:
    """Prints one answer; `end` after its last piece."""

    def __init__(self, console: Console | None = None) -> None:
        self._live = Live(console=console or Console(), auto_refresh=False, transient=True)
        self._rest = ""

    def show(self, piece: str) -> None:
        """Add a piece of the answer."""
        whole, self._rest = split_blocks(self._rest + piece)
        self._live.start()
        if whole:
            self._live.update("")
            self._live.console.print(Markdown(whole), "")
        self._live.update(Markdown(self._rest), refresh=True)

    def end(self) -> None:
        """Print what is left."""
        self._live.stop()
        if self._rest.strip():
            self._live.console.print(Markdown(self._rest))


def split_blocks(text: str) -> tuple[str, str]:
    """The blocks of a text that nothing can follow any more, and the rest: an empty line parts them, but in code."""
    at = text.rfind("\n\n")
    while at >= 0 and text.count(FENCE, 0, at) % 2:
        at = text.rfind("\n\n", 0, at)
    return (text[:at].strip("\n"), text[at:].lstrip("\n")) if at >= 0 else ("", text)
