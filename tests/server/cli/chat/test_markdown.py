"""Markdown in a terminal: each block is printed for good once, however its text is cut."""

from __future__ import annotations

import io
import random

import pytest
from rich.console import Console
from rich.markdown import Markdown

from server.cli.conversation import MarkdownPrinter, split_blocks

TEXT = """\
# Head

Some **bold** words.

```python
def f():

    return 1
```

1. one
2. two"""


@pytest.mark.parametrize(
    ("text", "whole", "rest"),
    [
        ("a", "", "a"),
        ("a\n\nb", "a", "b"),
        ("a\n\nb\n\nc\nd", "a\n\nb", "c\nd"),
        ("a\n\n```\nx\n\ny", "a", "```\nx\n\ny"),
        ("```\nx\n\ny\n```\n\n", "```\nx\n\ny\n```", ""),
    ],
)
def test_a_block_is_whole_at_an_empty_line_that_is_not_in_code(text: str, whole: str, rest: str) -> None:
    assert split_blocks(text) == (whole, rest)


def print_in_pieces(cuts: list[int]) -> str:
    """What a file gets of the text, which has no way to take a line back."""
    console = Console(file=io.StringIO(), width=40)
    printer = MarkdownPrinter(console)
    for begin, end in zip([0, *cuts], [*cuts, len(TEXT)], strict=True):
        printer.show(TEXT[begin:end])
    printer.end()
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines() if line.strip())


@pytest.mark.parametrize("seed", range(10))
def test_the_pieces_in_which_it_comes_make_no_difference(seed: int) -> None:
    chance = random.Random(seed)
    shown = print_in_pieces(sorted(chance.sample(range(1, len(TEXT)), 12)))
    console = Console(file=io.StringIO(), width=40)
    console.print(Markdown(TEXT))
    assert isinstance(console.file, io.StringIO)
    wanted = [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]
    assert shown.split("\n") == wanted


def test_a_terminal_is_left_with_the_whole_text_and_its_cursor() -> None:
    console = Console(file=io.StringIO(), width=40, force_terminal=True, legacy_windows=False)
    printer = MarkdownPrinter(console)
    for letter in TEXT:
        printer.show(letter)
    printer.end()
    assert isinstance(console.file, io.StringIO)
    written = console.file.getvalue()
    assert "\x1b[1mbold\x1b[0m" in written and "**" not in written.split("two")[-1]
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")
