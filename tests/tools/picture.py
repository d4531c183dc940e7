"""README's picture of the dashboard: a real server under a bounded load, as Chromium shows it, light and dark.

`make picture` writes docs/dashboard-light.png and docs/dashboard-dark.png; `--calls` and `--into` take others, of 0, 40
or 200 calls, to look at.
"""

import argparse
import asyncio
import random
import tempfile
from pathlib import Path

import aiohttp

from tests.browser import chromium, opened_page
from tests.live_server import serve

ROOT = Path(__file__).parents[2]
FORCED = (
    ("Translate to French: the house is small.", 20),
    ("Write one sentence about the sea.", 40),
    ("List five rules for a clean kitchen.", 90),
    ("Explain how a bicycle stays upright.", 160),
    ("Tell a story about a fox and a clockmaker.", 300),
)
"""Prompts, and the mean number of tokens that their answers are made to have."""

FREE = ("What is the capital of France?", "Name a fruit.", "How many legs has a spider?", "Who wrote Hamlet?")
"""Prompts whose answers end by themselves, which predictions are judged by."""

LIVE = "document.getElementById('link').dataset.state === 'live'"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=120, help="calls of the load; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=25, help="s of load before the picture; default: %(default)s")
    parser.add_argument("--width", type=int, default=1280, help="pixels of the window; default: %(default)s")
    parser.add_argument("--height", type=int, default=1130, help="pixels of the window; default: %(default)s")
    parser.add_argument("--into", type=Path, default=ROOT / "docs", help="folder of the pictures; default: docs")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, chromium(Path(folder) / "browser") as browser:
        flags = ("--max-num-seqs", "8", "--strategy", "lengthwise", "--journal", str(Path(folder) / "journal"))
        with serve("smollm2-135m-instruct", *flags) as url:  # its answers are what the next server predicts from
            asyncio.run(_answers(url, range(1000, 1150)))
        with serve("smollm2-135m-instruct", *flags) as url:
            asyncio.run(_picture(url, browser, args))


async def _answers(url: str, numbers: range) -> None:
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(300)) as session:
        await asyncio.gather(*[_call(session, number) for number in numbers])


async def _picture(url: str, browser: str, args: argparse.Namespace) -> None:
    async with aiohttp.ClientSession(url) as session, opened_page(browser) as page:
        await page.open(url, args.width, args.height)
        await page.until(LIVE)
        calls = [asyncio.create_task(_call(session, number)) for number in range(args.calls)]
        await page.until(f"performance.now() > {1000 * args.seconds}")
        for scheme in ("light", "dark"):
            await page.prefer("prefers-color-scheme", scheme)
            await page.value("new Promise((shown) => setTimeout(shown, 500))")  # canvases are drawn anew
            await page.screenshot(args.into / f"dashboard-{scheme}.png")
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def _call(session: aiohttp.ClientSession, number: int) -> None:
    """One call of the load; they come in four waves, so that lanes show rows that join and leave."""
    draw = random.Random(number)
    await asyncio.sleep(number % 4 * 3.0)
    free = number % 3 == 0
    prompt, tokens = (draw.choice(FREE), 256) if free else draw.choice(FORCED)
    most = tokens if free else int(tokens * draw.uniform(0.8, 1.2))
    asked = {"messages": [{"role": "user", "content": prompt if free else f"{prompt} ({number})"}], "stream": True}
    body = asked | {"max_tokens": most, "ignore_eos": not free, "user": draw.choice(("ada", "ben", "eve"))}
    async with session.post("/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        await answer.read()


if __name__ == "__main__":
    main()
