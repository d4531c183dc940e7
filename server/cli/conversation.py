"""A conversation with a running server, as its client: history, one streamed answer at a time, clear failures.

What to do with each piece of text is the caller's business. A terminal may have it as Markdown: a whole block is
printed for good, the last one anew with each piece.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
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
    took: str = ""
    """Time and tokens of the latest whole answer; empty before there is one, or from a server that does not count."""

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
            async with self._ask("GET", "models") as response:
                listed = await response.read()
            try:
                self.model = drop_controls(str(orjson.loads(listed)["data"][0]["id"]))
            except (LookupError, TypeError, ValueError) as error:
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
        begin, first, self.took = time.monotonic(), None, ""
        try:
            async with aclosing(self._answer(queued)) as answer:
                async for event in answer:
                    now = time.monotonic() - begin
                    if piece := _content(event):
                        first = now if first is None else first
                        pieces.append(piece)
                        show(drop_controls(piece))
                    if usage := event.get("usage"):
                        self.took = _tell_took(usage, now if first is None else first, now)
        except UserError:
            self.turns.pop()
            raise
        finally:
            if self.turns and self.turns[-1]["role"] == "user":
                self.turns.append({"role": "assistant", "content": "".join(pieces)})

    @asynccontextmanager
    async def _ask(self, method: str, path: str, body: bytes | None = None) -> AsyncIterator[aiohttp.ClientResponse]:
        """The server's answer, of status 200. Raises UserError."""
        url = f"{self.url.rstrip('/').removesuffix('/v1')}/v1/{path}"
        headers = {"Content-Type": "application/json", HEADER: "1"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            async with (
                aiohttp.ClientSession(timeout=TIMEOUT, headers=headers) as session,
                session.request(method, url, data=body) as response,
            ):
                if response.status != 200:
                    raise UserError(await _explain(response))
                yield response
        except aiohttp.InvalidURL as error:
            raise UserError(f"{url} is no Lengthwise server; name one with --url") from error
        except (aiohttp.ClientConnectorError, TimeoutError) as error:
            message = f"no server answers at {url}: start one with `lengthwise serve`, or name another with --url"
            raise UserError(message) from error
        except aiohttp.ClientError as error:
            raise UserError(f"the connection to {url} broke: {error}") from error

    async def _answer(self, queued: Callable[[Progress], object]) -> AsyncGenerator[Any, None]:
        asked = {"stream": True, "stream_options": {"include_usage": True}}
        body = {"model": self.model, "messages": self.messages, **asked, **self.options}

        def read_comment(comment: bytes) -> None:
            if (progress := progress_in(comment.decode())) is not None:
                queued(progress)

        parser = EventParser(read_comment)
        async with self._ask("POST", "chat/completions", orjson.dumps(body)) as response:
            async for chunk in response.content.iter_any():
                for data in parser.feed(chunk):
                    if data == b"[DONE]":
                        return
                    yield orjson.loads(data)
        raise UserError("the answer was cut off: the server closed the connection")


def _tell_took(usage: Any, first: float, total: float) -> str:
    """The tokens of an answer, and the seconds to its first piece and in all."""
    generated = usage["completion_tokens"]
    speed = (generated - 1) / (total - first) if total > first else 0.0
    return (
        f"{usage['prompt_tokens']} tokens in, {generated} out; first token after {first:.2f} s, "
        f"then {speed:.1f} tokens/s; {total:.2f} s in all"
    )


def drop_controls(text: str) -> str:
    """A text without the characters that could steer a terminal; each goes by itself, so pieces need no memory."""
    return text.translate(CONTROLS)


def _content(event: Any) -> str:
    if "error" in event:
        raise UserError(drop_controls(str(event["error"]["message"])))
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])


async def _explain(response: aiohttp.ClientResponse) -> str:
    try:
        return drop_controls(str(orjson.loads(await response.read())["error"]["message"]))
    except (ValueError, KeyError, TypeError):
        return f"{response.url} answers with status {response.status}: is this a Lengthwise server?"


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
