"""The page at / and its files: who gets them, and that nothing in them comes from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from server.dashboard.feed import FOLDER, TYPES
from tests.server.live import Live

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
ROOT = Path(__file__).parents[3]


async def test_browsers_get_the_dashboard_and_others_the_index(live: Live) -> None:
    async with live.session.get(live.url, headers=BROWSER) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "<title>Lengthwise</title>" in await response.text()
    for accept in ("*/*", "application/json"):
        async with live.session.get(live.url, headers={"Accept": accept}) as response:
            assert response.headers["Vary"] == "Accept"
            assert (await response.json())["name"] == "Lengthwise"


async def test_the_chat_has_a_page_of_its_own_under_the_same_policy(live: Live) -> None:
    async with live.session.get(f"{live.url}/chat") as response:
        assert response.status == 200
        assert await response.read() == (FOLDER / "chat.html").read_bytes()
        assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")


async def test_its_policy_lets_nothing_in_from_elsewhere(live: Live) -> None:
    async with live.session.get(live.url, headers=BROWSER) as response:
        policy = response.headers["Content-Security-Policy"].split("; ")
        assert response.headers["Vary"] == "Accept"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert not [rule for rule in policy if "unsafe" in rule or "http" in rule or "*" in rule]


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.iterdir()))
async def test_each_file_is_served_with_its_type_and_known_again(live: Live, name: str) -> None:
    async with live.session.get(f"{live.url}/dashboard/{name}") as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith(TYPES[Path(name).suffix])
        assert await response.read() == (FOLDER / name).read_bytes()
        tag = response.headers["ETag"]
    async with live.session.get(f"{live.url}/dashboard/{name}", headers={"If-None-Match": tag}) as response:
        assert (response.status, await response.read()) == (304, b"")
    async with live.session.get(f"{live.url}/dashboard/{name}", headers={"If-None-Match": '"old"'}) as response:
        assert response.status == 200


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fapp.py", "%2e%2e%2fpage.py", "%2Fetc%2Fpasswd"])
async def test_nothing_else_is_served(live: Live, name: str) -> None:
    async with live.session.get(f"{live.url}/dashboard/{name}") as response:
        assert response.status == 404


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


def test_a_wheel_has_them(tmp_path: Path) -> None:
    """Without package data, an installed server would have no page."""
    pytest.importorskip("setuptools", reason="it builds wheels")
    wheel = next(built_wheel(tmp_path).glob("*.whl"))
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"server/dashboard/static/{path.name}" for path in FOLDER.iterdir()} <= names


def built_wheel(folder: Path) -> Path:
    """A wheel of the packages as they are on disk, in `folder`."""
    source = folder / "source"
    packages = [path.name for path in ROOT.iterdir() if (path / "__init__.py").exists() and path.name != "tests"]
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in packages:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-c", f"from setuptools.build_meta import build_wheel; build_wheel({str(folder)!r})"]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    return folder
