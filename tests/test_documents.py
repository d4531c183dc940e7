"""Links of the documents lead to files of the repository, and docs/strategies.md has every strategy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from scheduler.strategy import STRATEGIES

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"(?<![\w/])docs/[\w./-]+\.(?:md|html|json)\b")


def linked(document: Path) -> Iterator[tuple[str, Path]]:
    """Every link to a file, and every path below docs/ that the text names."""
    text = document.read_text("utf-8")
    for link in LINK.findall(text):
        if not re.match(r"[a-z]+:|#", link):
            yield link, document.parent / link.partition("#")[0]
    for name in NAMED.findall(text):
        yield name, ROOT / name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document: Path) -> None:
    assert [link for link, path in linked(document) if not path.exists()] == []


def test_documents_that_the_code_names_exist() -> None:
    folders = ("engine", "loadgen", "models", "scheduler", "server")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    named = {name for path in files for name in NAMED.findall(path.read_text("utf-8"))}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_strategy_is_described() -> None:
    text = (ROOT / "docs" / "strategies.md").read_text("utf-8")
    described = re.findall(r"`([\w*-]+)`", text)
    assert [name for name in STRATEGIES if not any(fnmatch(name, pattern) for pattern in described)] == []
