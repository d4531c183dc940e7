"""Markdown in a terminal while it comes: a whole block is printed for good, the last one anew with each piece."""

from __future__ import annotations

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown

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
