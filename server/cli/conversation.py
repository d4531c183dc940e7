"""A conversation with a running server, as its client: history, one streamed answer at a time, clear failures.

It blocks the thread that talks; an exception raised there, such as Ctrl-C, hangs up. What to do with each piece of
text is the caller's business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import orjson

from models.errors import UserError
from server.api.output.sse import HEADER, Progress, progress_in

SILENCE = 600.0
"""Seconds without a byte after which a connection counts as lost; a server of ours sends some while a call waits."""

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

    def connect(self) -> str:
        """Ask the server for its model unless one was named; returns the name. Raises UserError."""
        if self.model is None:
            with self._ask("models") as response:
                listed = response.read()
            try:
                self.model = drop_controls(str(orjson.loads(listed)["data"][0]["id"]))
            except (LookupError, TypeError, ValueError) as error:
                raise UserError(f"{self.url} is no Lengthwise server; name one with --url") from error
        return self.model

    def say(
        self, text: str, show: Callable[[str], object], queued: Callable[[Progress], object] = lambda progress: None
    ) -> None:
        """Take a turn, pass its progress in line to `queued` and each piece of the answer to `show`; raises UserError.

        What is shown has no control characters. When it is interrupted, what was said so far stays in the conversation;
        when it fails, the turn is undone.
        """
        turn, answer = {"role": "user", "content": text}, {"role": "assistant", "content": ""}
        self.turns.append(turn)
        begin, first, self.took = time.monotonic(), None, ""
        try:
            with closing(self._events(queued)) as events:
                for event in events:
                    now = time.monotonic() - begin
                    if piece := _content(event):
                        first = now if first is None else first
                        answer["content"] += piece
                        show(drop_controls(piece))
                    if usage := event.get("usage"):
                        self.took = _describe_usage(usage, now if first is None else first, now)
        except UserError:
            self.turns.remove(turn)
            raise
        finally:
            if self.turns[-1:] == [turn]:
                self.turns.append(answer)

    def _ask(self, path: str, body: bytes | None = None) -> HTTPResponse:
        """The server's answer, of status 200. Raises UserError."""
        url = f"{self.url.rstrip('/').removesuffix('/v1')}/v1/{path}"
        headers = {"Content-Type": "application/json", HEADER: "1"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        opener = build_opener(ProxyHandler({}))  # whatever the environment says: most servers are on this machine
        try:
            response: HTTPResponse = opener.open(Request(url, body, headers), timeout=SILENCE)
        except HTTPError as error:
            raise UserError(_explain(error)) from error
        except OSError as error:
            message = f"no server answers at {url}: start one with `lengthwise serve`, or name another with --url"
            raise UserError(message) from error
        except (HTTPException, ValueError) as error:
            raise UserError(f"{url} is no Lengthwise server; name one with --url") from error
        return response

    def _events(self, queued: Callable[[Progress], object]) -> Generator[Any]:
        asked = {"stream": True, "stream_options": {"include_usage": True}}
        body = {"model": self.model, "messages": self.messages, **asked, **self.options}
        try:
            with self._ask("chat/completions", orjson.dumps(body)) as response:
                for line in response:
                    kind, _, text = line.decode().strip().partition(":")
                    if not kind and (progress := progress_in(text.strip())) is not None:
                        queued(progress)
                    elif kind == "data" and text.strip() == "[DONE]":
                        return
                    elif kind == "data":
                        yield orjson.loads(text)
        except (OSError, HTTPException) as error:
            raise UserError(f"the connection to {self.url} broke: {error}") from error
        raise UserError("the answer was cut off: the server closed the connection")


def _content(event: Any) -> str:
    if "error" in event:
        raise UserError(drop_controls(str(event["error"]["message"])))
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])


def _explain(answer: HTTPError) -> str:
    try:
        return drop_controls(str(orjson.loads(answer.read())["error"]["message"]))
    except (ValueError, KeyError, TypeError):
        return f"{answer.url} answers with status {answer.code}: is this a Lengthwise server?"


def _describe_usage(usage: Any, first: float, total: float) -> str:
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
