"""Docstrings and comments use the field's words, and stay few; both ceilings only fall."""

import ast
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WORDS = 1.3
STRINGS = 200
COMMENT = re.compile(r"^\s*#(.*)|  # (.*)", re.MULTILINE)
WORN = {  # phrase -> what to write instead, and why
    r"told|tells?": "say, report or ask: programs do not talk",
    r"so many": "the number's name: which many?",
    r"whatever|whoever": "any, regardless of: names nothing",
    r"anew": "again, recompute: poetic",
    r"(?<!one )of which": "one of which, or a sentence: readers must look back",
    r"passed over": "ignored: every API's word",
    r"ma(?:de|kes?) way": "preempted: the field's word",
    r"foretells?": "predict: the field's word",
}


@cache
def read_house() -> tuple[dict[str, str], int, int]:
    """Each file's docstrings and comments, lines of code, and strings below fields and constants."""
    prose, code, below = {}, 0, 0
    for path in [ROOT / "lengthwise.py", *ROOT.glob("[elms]*/**/*.py")]:
        source = path.read_text("utf-8")
        lines, texts = source.split("\n"), ["\n".join(map("".join, COMMENT.findall(source)))]
        for parent in ast.walk(ast.parse(source)):
            body = getattr(parent, "body", None)
            for above, node in pairwise([parent, *body] if isinstance(body, list) else ()):
                if (
                    isinstance(node, ast.Expr)
                    and isinstance(node.value, ast.Constant)
                    and isinstance(node.value.value, str)
                ):
                    texts.append(node.value.value)
                    lines[node.lineno - 1 : node.end_lineno] = [""] * len(lines[node.lineno - 1 : node.end_lineno])
                    below += isinstance(above, ast.Assign | ast.AnnAssign)
        code += sum(line.strip() != "" and not line.lstrip().startswith("#") for line in lines)
        prose[str(path.relative_to(ROOT))] = "\n".join(texts)
    return prose, code, below


@pytest.mark.parametrize("phrase", WORN)
def test_worn_phrases_give_way_to_the_words_of_the_field(phrase: str) -> None:
    prose = {path: re.sub(r"`[^`]*`", "", text) for path, text in read_house()[0].items()}
    assert [path for path, text in prose.items() if re.search(rf"\b(?:{phrase})\b", text)] == [], WORN[phrase]


def test_prose_stays_short() -> None:
    prose, code, below = read_house()
    assert sum(len(text.split()) for text in prose.values()) <= WORDS * code and below <= STRINGS


@pytest.mark.parametrize(("pages", "most"), [(["README.md", "docs/*.md"], 14_000), (["docs/research/*.md"], 16_000)])
def test_pages_stay_short(pages: list[str], most: int) -> None:
    """Counted as by `wc -w`."""
    assert sum(len(path.read_text("utf-8").split()) for page in pages for path in ROOT.glob(page)) <= most
