"""Links of the documents lead to files of the repository, and docs/strategies.md has every strategy."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path

import pytest

from scheduler.strategy import STRATEGIES
from server.cli.main import build_parser
from tests.test_architecture import PACKAGES
from tests.tools import api_fields, claims
from tests.tools.claims import read_claims, run_claim

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"(?<![\w/])docs/[\w./-]+\.(?:md|html|json)\b")


def linked(document: Path) -> Iterator[tuple[str, Path, str]]:
    """Every link to a file with its anchor, and every path below docs/ that the text names."""
    text = document.read_text("utf-8")
    for link in LINK.findall(text):
        if not re.match(r"[a-z]+:", link):
            name, _, anchor = link.partition("#")
            yield link, document.parent / name if name else document, anchor
    for name in NAMED.findall(text):
        yield name, ROOT / name, ""


def sources(*folders: str) -> list[str]:
    """The texts of the modules below these folders."""
    return [path.read_text("utf-8") for folder in folders for path in (ROOT / folder).rglob("*.py")]


def slugs(document: Path) -> set[str]:
    """Anchors of a document's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", document.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_to_headings(document: Path) -> None:
    found = [*linked(document)]
    assert [link for link, path, _ in found if not path.exists()] == []
    anchored = [(link, path, anchor) for link, path, anchor in found if anchor and path.suffix == ".md"]
    assert [link for link, path, anchor in anchored if anchor not in slugs(path)] == []


def test_documents_that_the_code_names_exist() -> None:
    named = {name for text in sources(*PACKAGES) for name in NAMED.findall(text)}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_sections_of_the_design_that_the_code_cites_exist() -> None:
    cited = {one for text in sources(*PACKAGES, "tests") for one in re.findall(r"\(design (\d\.\d)\)", text)}
    sections = re.findall(r"^### (\d\.\d) ", (ROOT / "docs/design.md").read_text("utf-8"), re.MULTILINE)
    assert cited and cited <= {*sections}


def test_every_message_that_the_questions_explain_is_one_of_the_program() -> None:
    written = "".join([(ROOT / "lengthwise.py").read_text("utf-8"), *sources(*PACKAGES - {"loadgen"})])
    source = re.sub(r'"\n\s+f?"', "", written)  # literals that go on in the next line
    source = re.sub(r"\{[^{}]*\}", "", source) + written
    messages = re.findall(r"^### `(.+)`$", (ROOT / "docs/faq.md").read_text("utf-8"), re.MULTILINE)
    assert len(messages) > 10
    assert [one for one in messages if one not in source] == []


PLACES = re.compile(r"\b(?:engine|loadgen|models|scheduler|server)(?:/\w+)+/?(?:\.py)?")


@pytest.mark.parametrize("name", ["architecture.md", "architecture.svg", "design.md", "lengthwise.md", "strategies.md"])
def test_places_in_the_code_that_the_documents_name_exist(name: str) -> None:
    places = set(PLACES.findall((ROOT / "docs" / name).read_text("utf-8")))
    assert places and [place for place in sorted(places) if not (ROOT / place).exists()] == []


def test_every_document_is_in_the_index() -> None:
    text = (ROOT / "docs/index.md").read_text("utf-8")
    assert [path.name for path in ROOT.glob("docs/*.md") if path.name != "index.md" and path.name not in text] == []


def test_tables_of_fields_are_those_of_the_types() -> None:
    """`python -m tests.tools.api_fields` writes them anew."""
    page = api_fields.PAGE.read_text("utf-8")
    assert api_fields.filled(page) == page
    assert [name for name in api_fields.described() if f"`{name}`" not in page] == []


def test_every_strategy_is_described() -> None:
    text = (ROOT / "docs" / "strategies.md").read_text("utf-8")
    described = re.findall(r"`([\w*-]+)`", text)
    assert [name for name in STRATEGIES if not any(fnmatch(name, pattern) for pattern in described)] == []


def test_every_test_that_the_operators_are_told_of_exists() -> None:
    rows = (ROOT / "docs" / "promises.md").read_text().partition("## Faults")[2].partition("\n## ")[0]
    cells = [row.split(" | ")[-1] for row in rows.splitlines() if row.startswith("| ")][1:]
    files = [re.findall(r"`([\w/]+\.py)`", cell) for cell in cells]
    assert len(files) > 20 and all(files)
    assert [name for named in files for name in named if not (ROOT / "tests" / name).exists()] == []


def test_claims_of_the_pages_have_commands_that_exist() -> None:
    found, parser = read_claims(), build_parser()
    assert len(found) >= 40, "comments behind commands hid most of them"
    for one in found:
        if one.command.startswith("lengthwise"):
            parser.parse_args(shlex.split(one.command)[1:])
        else:
            assert find_spec(re.findall(r" -m ([\w.]+)", one.command)[0])


def test_a_command_without_the_file_of_a_reader_says_so() -> None:
    headings = {one.command: one.heading for one in read_claims()}
    assert "(a short form of `lengthwise bench grid --seeds 2 --trace" in headings["lengthwise bench grid --seeds 2"]
    assert "short form" not in headings["lengthwise paper ssjf --experiments rates"]


def test_a_claim_prints_as_it_runs_and_is_interrupted_at_its_limit(capfd: pytest.CaptureFixture[str]) -> None:
    command = "lengthwise simulate --duration 5 --strategies baton-pd"
    assert run_claim(command, 120).startswith("ended after ") and "baton-pd" in capfd.readouterr().out
    assert run_claim("lengthwise simulate --duration 100000", 5).startswith("was not done after ")
    end = run_claim("lengthwise simulate --duration never", 120)
    assert "--duration" in capfd.readouterr().out and end.startswith("failed with exit code 2 after ")


def test_ctrl_c_ends_a_sample_in_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(command: str, limit: float) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.argv", ["claims", "--count", "1"])
    monkeypatch.setattr(claims, "run_claim", interrupt)
    assert claims.main() == 130 and capsys.readouterr().err == "interrupted\n"


# The site of the documents has every page, and its builder finds no fault

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
