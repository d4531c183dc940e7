"""`lengthwise chat`: a conversation in the terminal, as a client. Exceptions such as Ctrl-C hang up; without a terminal
it reads a turn a line.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field, replace
from http.client import HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Annotated, Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import orjson
from msgspec import Meta

from models.errors import UserError
from models.options import Count, Subparsers, add_command, option

if TYPE_CHECKING:
    from server.api.output.sse import Progress

KEYS = "LENGTHWISE_API_KEY"  # variable with a local server's keys

SILENCE = 600.0  # seconds without a byte that mean a lost connection; keep-alives are more frequent

ERASE = "\r\x1b[K"  # erases a terminal's line

# C0 but newline and tab, DEL, and C1
CONTROLS = dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - {ord("\n"), ord("\t")})

QUOTES = '"""'  # around several lines, as in Ollama

HELP = f"""\
{QUOTES}            begin a text of several lines, which another {QUOTES} ends
/reset         forget the conversation
/help          show this
/exit          leave; also /quit, /bye and Ctrl-D
Ctrl-C         stop the answer; at the prompt: leave"""

LEAVE = ("/exit", "/quit", "/bye")

COMMAND = re.compile(r"/[a-z]+")  # not a path


@dataclass(frozen=True, kw_only=True)
class Talk:
    """The settings of a conversation."""

    system: str | None = option(None, "system message: what the assistant shall be")
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = option(None, "0 takes the likeliest token; at most 2")
    max_tokens: Count | None = option(None, "longest answer, in tokens")


@dataclass(frozen=True, kw_only=True)
class Chat(Talk):
    """The server to talk to, and the settings of the conversation."""

    url: str = option("http://127.0.0.1:8000", "where the server listens", metavar="URL")
    api_key: str | None = option(None, metavar="KEY", secret=True)
    """where the server wants one (default: the first of $LENGTHWISE_API_KEY, or $OPENAI_API_KEY)"""
    model: str | None = option(None, "model to talk to (default: the server's)", metavar="NAME")


def add_parser(subparsers: Subparsers) -> None:
    add_command(subparsers, "chat", Chat, run)


def run(chat: Chat) -> int:
    """Talk to a running server from the terminal.

    Where the input is no terminal, the exit code is 1 when a turn failed.

    Example: lengthwise chat
    """
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # JSON is text
    key = chat.api_key or os.environ.get(KEYS, "").partition(",")[0].strip() or os.environ.get("OPENAI_API_KEY")
    conversation, interactive, failed = ChatSession(replace(chat, api_key=key)), sys.stdin.isatty(), False
    conversation.connect()
    if interactive:
        import readline  # noqa: F401  # gives input() its history and editing

        print(f"Talking to {conversation.chat.model}. /help shows what else there is.")
    while (text := _read(interactive)) is not None and text not in LEAVE:
        word = text.partition(" ")[0]
        if word == "/reset":
            conversation.turns.clear()
        elif word == "/help":
            print(HELP)
        elif COMMAND.fullmatch(word):
            print(f"unknown command {word}; /help shows what there is")
        elif text:
            try:
                _print_answer(conversation, text, interactive and sys.stdout.isatty())
            except KeyboardInterrupt:
                print("\n[stopped]")
            except UserError as error:
                failed = True
                print(f"\nlengthwise: error: {error}", file=sys.stderr)
    return int(failed and not interactive)


def _read(interactive: bool) -> str | None:
    """A line, or several in quotes; None at the end."""
    try:
        text = input("> " if interactive else "")
        if interactive and text.startswith(QUOTES):
            text = text.removeprefix(QUOTES)
            while not text.endswith(QUOTES):
                text += "\n" + input("... ")
            text = text.removesuffix(QUOTES)
        return text.strip()
    except (EOFError, KeyboardInterrupt):
        if interactive:
            print()
        return None


def _print_answer(conversation: ChatSession, text: str, places: bool) -> None:
    """`places` shows the place in the queue until the answer starts."""
    before = ""
    with closing(conversation.say(text)) as told:
        for piece in told:
            if isinstance(piece, str):
                print(before + piece, end="", flush=True)
                before = ""
            elif places:
                wait = "" if piece.expected_wait_s is None else f", about {piece.expected_wait_s:.1f} s"
                print(f"{ERASE}Place {piece.place} in the queue{wait}.", end="", flush=True)
                before = ERASE
    print()


@dataclass(slots=True)
class ChatSession:
    chat: Chat
    turns: list[dict[str, str]] = field(default_factory=list)

    def connect(self) -> None:
        """Ask for the model unless named. Raises UserError."""
        if self.chat.model is None:
            with self._ask("models") as response:
                listed = response.read()
            try:
                self.chat = replace(self.chat, model=drop_controls(orjson.loads(listed)["data"][0]["id"]))
            except (LookupError, TypeError, ValueError) as error:
                raise UserError(f"{self.chat.url} is no Lengthwise server; name one with --url") from error

    def say(self, text: str) -> Generator[str | Progress]:
        """Places in the queue, then pieces without control characters. Raises UserError. Leaving early keeps what was
        said; failure undoes the turn.
        """
        answer = {"role": "assistant", "content": ""}
        self.turns.append({"role": "user", "content": text})
        body = self._body()
        self.turns.append(answer)
        try:
            for told in self._stream(body):
                if isinstance(told, str):
                    answer["content"] += told
                    yield drop_controls(told)
                else:
                    yield told
        except UserError:
            del self.turns[-2:]
            raise

    def _body(self) -> bytes:
        chat = self.chat
        system = [{"role": "system", "content": chat.system}] if chat.system else []
        given = {"temperature": chat.temperature, "max_tokens": chat.max_tokens}
        options = {name: value for name, value in given.items() if value is not None}
        return orjson.dumps({"model": chat.model, "messages": [*system, *self.turns], "stream": True, **options})

    def _stream(self, body: bytes) -> Generator[str | Progress]:
        from server.api.output.sse import progress_in  # aiohttp, not needed for --help

        try:
            with self._ask("chat/completions", body) as response:
                for line in response:
                    kind, _, text = line.decode().strip().partition(":")
                    if not kind and (progress := progress_in(text.strip())) is not None:
                        yield progress
                    elif kind == "data" and text.strip() == "[DONE]":
                        return
                    elif kind == "data" and (piece := _content(orjson.loads(text))):
                        yield piece
        except (OSError, HTTPException) as error:
            raise UserError(f"the connection to {self.chat.url} broke: {error}") from error
        raise UserError("the answer was cut off: the server closed the connection")

    def _ask(self, path: str, body: bytes | None = None) -> HTTPResponse:
        from server.api.output.sse import HEADER

        url = f"{self.chat.url.rstrip('/').removesuffix('/v1')}/v1/{path}"
        headers = {"Content-Type": "application/json", HEADER: "1"}
        if self.chat.api_key:
            headers["Authorization"] = f"Bearer {self.chat.api_key}"
        opener = build_opener(ProxyHandler({}))  # ignore proxies in the environment
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


def _content(event: Any) -> str:
    if "error" in event:
        raise UserError(drop_controls(event["error"]["message"]))
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])


def _explain(answer: HTTPError) -> str:
    try:
        return drop_controls(orjson.loads(answer.read())["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"{answer.url} answers with status {answer.code}: is this a Lengthwise server?"


def drop_controls(text: object) -> str:
    """Character by character, so pieces need no memory."""
    return str(text).translate(CONTROLS)
