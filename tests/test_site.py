"""The site of the documents has every page, and its builder finds no fault."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "docs/mkdocs.yml"


def test_every_page_has_its_place_in_the_site() -> None:
    named = re.findall(r"^ *- (\S+\.md)$", CONFIG.read_text("utf-8"), re.MULTILINE)
    pages = {path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))}
    assert sorted(named) == sorted(pages)


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("zensical", reason="needs lengthwise[docs]; make site builds it too")
    pages = tmp_path / "pages"
    shutil.copytree(ROOT / "docs", pages / "docs")
    shutil.copytree(ROOT / "server/deploy", pages / "server/deploy")
    shutil.copytree(ROOT / "findings", pages / "findings")
    for path in (*ROOT.glob("*.md"), ROOT / "CITATION.cff", ROOT / "LICENSE"):
        shutil.copy(path, pages)
    shutil.copy(CONFIG, tmp_path)
    command = [sys.executable, "-P", "-m", "zensical", "build", "--strict", "-f", str(tmp_path / "mkdocs.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site/docs/families.html").exists()
