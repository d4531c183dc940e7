"""`lengthwise chat`: a conversation in the terminal with a running server.

It owns the arguments, the prompt and what Ctrl-C and Ctrl-D mean. Without a terminal it reads one turn per line and
prints answers only.
"""

from __future__ import annotations

import io
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
from msgspec import Meta

from models.errors import UserError
from models.options import Count, Subparsers, add_command, option

if TYPE_CHECKING:
    from server.api.output.sse import Progress
    from server.cli.conversation import Conversation

KEYS = "LENGTHWISE_API_KEY"
"""The variable that the server on this machine may have its keys from."""

ERASE = "\r\x1b[K"
"""Makes a terminal write its line anew."""

QUOTES = '"""'
"""Begins and ends a text of several lines, as in Ollama."""

HELP = f"""\
{QUOTES}            begin a text of several lines, which another {QUOTES} ends
/system TEXT   set the system message; without a text: show it
/stats         show what the latest answer took
/save FILE     write the conversation as JSON, as `messages` has it
/reset         forget the conversation
/help          show this
/exit          leave; also /quit, /bye and Ctrl-D
Ctrl-C         stop the answer; at the prompt: leave"""

LEAVE = ("/exit", "/quit", "/bye")

COMMAND = re.compile(r"/[a-z]+")
"""Looks like a command; a path such as /etc/hosts does not."""


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
    api_key: str | None = option(
        None, f"where the server wants one (default: the first of ${KEYS}, or $OPENAI_API_KEY)", metavar="KEY"
    )
    model: str | None = option(None, "model to talk to (default: the server's)", metavar="NAME")


def add_parser(subparsers: Subparsers) -> None:
    """Add the command and its flags to the program's own."""
    description = "Talk to a running server from the terminal."
    add_command(subparsers, "chat", Chat, run, help="talk to a running server", description=description)


def run(chat: Chat) -> int:
    """Talk to the server that the flags name; returns the exit code."""
    return talk(chat.url, chat, chat.model, chat.api_key)


def talk(url: str, how: Talk, model: str | None = None, key: str | None = None) -> int:
    """Talk until the user leaves; returns the exit code: 1 when a turn failed and the input was no terminal."""
    from server.cli.conversation import Conversation  # aiohttp, which --help can do without

    given = {"temperature": how.temperature, "max_tokens": how.max_tokens}
    options = {name: value for name, value in given.items() if value is not None}
    key = key or os.environ.get(KEYS, "").partition(",")[0].strip() or os.environ.get("OPENAI_API_KEY")
    return Terminal(Conversation(url, model, how.system, options, key), sys.stdin.isatty()).run()


class Terminal:
    """Reads turns and prints answers, with prompts and hints only at a terminal."""

    def __init__(self, conversation: Conversation, interactive: bool) -> None:
        self._conversation = conversation
        self._interactive = interactive
        self._failed = False
        self._noted = False  # the line that the cursor is in tells a place in the queue

    def run(self) -> int:
        """Talk until the input ends; returns the exit code. Raises UserError when there is no server."""
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # JSON carries text, not any bytes
        model = self._conversation.connect()
        if self._interactive:
            import readline  # noqa: F401  # gives input() its history and editing

            print(f"Talking to {model}. /help shows what else there is.")
        while (line := self._read()) is not None and (text := line.strip()) not in LEAVE:
            self._handle(text)
        return int(self._failed and not self._interactive)

    def _read(self) -> str | None:
        """The next line, or text of several; None at the end."""
        try:
            text = input("> " if self._interactive else "")
            if not (self._interactive and text.startswith(QUOTES)):
                return text
            text = text.removeprefix(QUOTES)
            while not text.endswith(QUOTES):
                text += "\n" + input("... ")
            return text.removesuffix(QUOTES)
        except (EOFError, KeyboardInterrupt):
            if self._interactive:
                print()
            return None

    def _handle(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        match word:
            case "":
                return
            case "/reset":
                self._conversation.turns.clear()
            case "/help":
                print(HELP)
            case "/system":
                self._conversation.system = rest.strip() or self._conversation.system
                print(f"System message: {self._conversation.system or 'none'}")
            case "/stats":
                print(self._conversation.took or "There is no whole answer yet.")
            case "/save":
                self._save(rest.strip())
            case _ if COMMAND.fullmatch(word):
                print(f"unknown command {word}; /help shows what there is")
            case _:
                self._answer(line)

    def _save(self, name: str) -> None:
        try:
            Path(name).expanduser().write_bytes(orjson.dumps(self._conversation.messages, option=orjson.OPT_INDENT_2))
            print(f"Saved {name}.")
        except OSError as error:
            print(f"{name or '/save'} cannot be written: {error.strerror}; name another file")

    def _answer(self, line: str) -> None:
        try:
            self._conversation.say(line, self._show, self._queued)
            print()
        except KeyboardInterrupt:
            print("\n[stopped]")
        except UserError as error:
            self._failed = True
            print(f"\nlengthwise: error: {error}", file=sys.stderr)

    def _show(self, piece: str) -> None:
        """Print a piece of an answer; the first takes over the line with the place in the queue."""
        print(ERASE + piece if self._noted else piece, end="", flush=True)
        self._noted = False

    def _queued(self, progress: Progress) -> None:
        """Tell the place in one line, which the next place or the answer takes over."""
        if not (self._interactive and sys.stdout.isatty()):
            return
        wait = "" if progress.expected_wait_s is None else f", about {progress.expected_wait_s:.1f} s"
        print(f"{ERASE}Place {progress.place} in the queue{wait}.", end="", flush=True)
        self._noted = True
