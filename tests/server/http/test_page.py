"""The page at / and its files: who gets them, and that nothing in them comes from elsewhere."""

import re
import tomllib
from pathlib import Path

import pytest

from server.dashboard.feed import FOLDER, TYPES
from tests.server.live import Live

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
ROOT = Path(__file__).parents[3]


async def test_browsers_get_the_dashboard_and_others_the_index(live: Live) -> None:
    page = await live.get("/", accept=BROWSER)
    assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert page.headers["Vary"] == "Accept"
    assert b"<title>Lengthwise</title>" in page.body
    for accept in ("*/*", "application/json"):
        index = await live.get("/", accept=accept)
        assert (index.headers["Vary"], index.json["name"]) == ("Accept", "Lengthwise")


@pytest.mark.parametrize(("path", "file"), [("/", "index.html"), ("/chat", "chat.html")])
async def test_the_policy_of_both_pages_lets_nothing_in_from_elsewhere(live: Live, path: str, file: str) -> None:
    page = await live.get(path, accept=BROWSER)
    assert (page.status, page.body) == (200, (FOLDER / file).read_bytes())
    policy = page.headers["Content-Security-Policy"].split("; ")
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert not [rule for rule in policy if "unsafe" in rule or "http" in rule or "*" in rule]


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.iterdir()))
async def test_each_file_is_served_with_its_type_and_known_again(live: Live, name: str) -> None:
    file = await live.get(f"/dashboard/{name}")
    assert (file.status, file.body) == (200, (FOLDER / name).read_bytes())
    assert file.headers["Content-Type"].startswith(TYPES[Path(name).suffix])
    again = await live.get(f"/dashboard/{name}", if_none_match=file.headers["ETag"])
    assert (again.status, again.body) == (304, b"")
    assert (await live.get(f"/dashboard/{name}", if_none_match='"old"')).status == 200


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fapp.py", "%2e%2e%2fpage.py", "%2Fetc%2Fpasswd"])
async def test_nothing_else_is_served(live: Live, name: str) -> None:
    assert (await live.get(f"/dashboard/{name}")).status == 404


def test_the_files_name_no_other_host_and_hold_no_inline_code() -> None:
    for path in FOLDER.iterdir():
        text = path.read_text("utf-8")
        hosts = set(re.findall(r"https?://([\w.]+)", text))
        assert hosts <= {"www.w3.org"}, path  # the name of SVG's own format
    for page in FOLDER.glob("*.html"):
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", page.read_text("utf-8"))


def test_each_file_that_is_named_is_there() -> None:
    there = {path.name for path in FOLDER.iterdir()}
    for path in FOLDER.iterdir():
        text = path.read_text("utf-8")
        named = set(re.findall(r'(?:src|href)="dashboard/([\w.]+)"', text)) | set(
            re.findall(r'from "\./([\w.]+)"', text)
        )
        assert named <= there, path
    used = "".join(path.read_text("utf-8") for path in FOLDER.iterdir())
    assert {name for name in there if name not in used} == {"index.html", "chat.html"}


def test_a_wheel_has_them() -> None:
    """Without package data, an installed server would have no page."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"]
    found = {path for pattern in data["server.dashboard"] for path in FOLDER.parent.glob(pattern)}
    assert found == {*FOLDER.iterdir()}
