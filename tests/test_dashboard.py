"""The dashboard in a real browser, in front of a real server: what it shows, how it looks, how it is used."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
import pytest

from engine.messages import ExecutorDied, FinishReason
from server.access import Access
from server.dashboard.feed import Feed
from server.dashboard.scene import DashboardState
from server.http.front import Front
from server.keys import Keyring
from tests.browser import CHROMIUM, Page, opened_page
from tests.server.dashboard.test_feed import Theatre
from tests.server.live import live_server

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, as Debian's package `chromium`")

LIVE = "document.getElementById('link').dataset.state === 'live' && document.querySelector('.lanes canvas').width > 0"
DECODING = """(() => {
    const canvas = document.querySelector('.lanes canvas');
    const [red, green, blue] = [47, 111, 224];
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
    let seen = 0;
    for (let i = 0; i < data.length; i += 4) seen += data[i] === red && data[i + 1] === green && data[i + 2] === blue;
    return seen;
})()"""
"""How many pixels of the timeline have the colour of decode."""


@asynccontextmanager
async def connected(browser: str, url: str, until: str = LIVE) -> AsyncIterator[Page]:
    """The dashboard; whatever its console complains of fails the test."""
    async with opened_page(browser) as page:
        await page.open(url)
        await page.until(until)
        yield page
        assert page.problems == []


@pytest.fixture
async def page(browser: str, live_url: str) -> AsyncIterator[Page]:
    async with connected(browser, live_url) as page:
        yield page


Played: TypeAlias = tuple[Page, Theatre]
"""A page before a server whose answers and rows the test plays."""


@pytest.fixture
async def played(browser: str) -> AsyncIterator[Played]:
    theatre = Theatre("fake")
    async with live_server(feed=theatre.feed) as live, connected(browser, live.url) as page:
        yield page, theatre


async def test_it_names_what_serves(page: Page) -> None:
    names = ["#model", "#strategy", "title", ".executor h3"]
    told = await page.value(f"{names}.map((one) => document.querySelector(one).textContent)")
    assert told == ["tiny", "baton-pd", "tiny · Lengthwise", "Executor 0 · cpu"]


async def test_rows_appear_while_requests_stream(page: Page, live_url: str) -> None:
    assert await page.value(DECODING) == 0
    body = {"prompt": "the quick", "max_tokens": 400, "ignore_eos": True, "n": 4}
    async with aiohttp.ClientSession() as session:
        streams = [session.post(f"{live_url}/v1/completions", json=body | {"stream": True}) for _ in range(3)]
        for response in await asyncio.gather(*streams):
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
    await page.until(f"{DECODING} > 100")
    await page.until("document.getElementById('latency').textContent !== '–'")
    await page.until("document.getElementById('lengths-empty').textContent.includes('predicts no lengths')")


async def test_rows_are_also_told_in_words(played: Played) -> None:
    page, theatre = played
    rows = [theatre.submit(predicted=6.0).row_id for _ in range(3)]
    theatre.dispatcher.dispatch()
    theatre.step(*rows[:2], begun=(rows[0], rows[1]))
    theatre.clock.time += 5.0  # the words change seldom, so that they can be read
    await page.value("document.getElementById('rows').open = true")
    cells = "[...document.querySelectorAll('#rows tbody tr')].map((row) => row.cells[2].textContent).join()"
    await page.until(f"{cells} === 'decode,decode'")
    await page.until("document.querySelectorAll('#queue tbody tr').length === 1")
    assert "≈ 1.5 s" in await page.value("document.getElementById('queue').textContent")
    label = "document.querySelector('.lanes canvas').getAttribute('aria-label')"
    await page.until(f"{label}.includes('2 sequences decode')")


async def test_a_request_of_the_queue_is_told_why_it_waits(browser: str) -> None:
    feed = Feed()
    waiting, calls = "document.querySelectorAll('#queue tbody button').length === 2", list[asyncio.Task[Any]]()
    async with live_server(feed=feed) as live:
        dispatcher = live.dispatcher
        feed.show(DashboardState(dispatcher, "fake", "baton-pd", 256))
        dispatcher.pause = 0
        dispatcher.waits.wait = lambda request: 1.25  # type: ignore[method-assign]
        for number in (1, 2):
            calls.append(asyncio.create_task(live.chat()))
            await dispatcher.until(lambda: len(dispatcher.submitted) == number)  # noqa: B023
        async with connected(browser, live.url, waiting) as page:
            await page.value("[...document.querySelectorAll('#queue tbody button')].at(-1).focus()")
            await page.press("Enter")
            await page.until("document.getElementById('why').open")
            row = dispatcher.submitted[1].row_id
            assert await page.value("document.getElementById('why-title').textContent") == f"Why request {row} waits"
            lines = await page.value("[...document.querySelectorAll('#why li')].map((one) => one.textContent)")
            (own,) = [one.removeprefix("Its id: ") for one in lines if one.startswith("Its id: ")]
            assert lines[0] == "1 ahead by baton-pd: 1 came earlier."
            assert lines[1].startswith("Of the same caller: chatcmpl-") and own not in lines[1]
            assert lines[2:4] == [
                "It starts in about 1.3 s, if none comes that goes first.",
                "None that comes later goes first, but for better priority or a deadline.",
            ]
        dispatcher.release()
        assert (await asyncio.gather(*calls))[1]["id"] == own


async def test_a_page_that_is_opened_sees_what_has_been(browser: str) -> None:
    """Its lanes, sparklines and figures began with the page."""
    theatre = Theatre("fake")
    row = theatre.submit().row_id
    theatre.dispatcher.dispatch()
    theatre.step(row, begun=(row,))
    for _ in range(8):
        theatre.step(row)
    async with live_server(feed=theatre.feed) as live, connected(browser, live.url) as page:
        await page.until(f"{DECODING} > 1000")
        line = "(() => { const c = document.getElementById('speed-line'); return c.getContext('2d').getImageData("
        await page.until(f"{line}0, 0, c.width, c.height - 2).data.some((one) => one); }})()")


async def test_only_clients_with_something_to_tell_are_listed(played: Played) -> None:
    """There was a line "all others 0 0 0 %"."""
    page, theatre = played
    for client in ("ann", "bob", ""):
        theatre.submit().client = client
    theatre.dispatcher.dispatch()
    theatre.step()
    await page.until("document.querySelectorAll('#clients tbody tr').length === 3")
    names = "[...document.querySelectorAll('#clients tbody tr')].map((row) => row.cells[0].textContent).join()"
    unnamed = next(one for one in theatre.requests if not one.client)
    theatre.dispatcher.cancel(unnamed)
    theatre.step()
    await page.until(f"{names} === 'ann,bob'")


async def test_the_queue_is_shown_in_the_order_in_which_it_is_served(played: Played) -> None:
    """It was shown in order of arrival beside waits by another order, which did not rise."""
    page, theatre = played
    theatre.dispatcher.waits.wait = lambda request: float(theatre.dispatcher.waits.place(request) or 0)  # type: ignore[method-assign]
    late, early = theatre.submit(), theatre.submit(priority=-1)
    await page.until("document.querySelectorAll('#queue tbody tr').length === 2")
    rows = "[...document.querySelectorAll('#queue tbody tr')]"
    lines = await page.value(f"{rows}.map((row) => [0, 1, 5].map((i) => row.cells[i].textContent))")
    assert lines == [[f"{early.row_id} · priority -1", "1", "≈ 0 ms"], [f"{late.row_id}", "2", "≈ 1.0 s"]]
    note = await page.value("document.getElementById('queue-note').textContent")
    assert note == "2 waiting, sorted by baton-pd; click an ID for why it waits"


async def test_predictions_are_judged_by_answers_that_could_show_them_wrong(played: Played) -> None:
    """Answers that max_tokens had cut, and predictions of max_tokens, counted as right: 4 tokens, 8 % for 19, 65 %."""
    page, theatre = played
    rows = [theatre.submit(predicted=predicted) for predicted in (1.0, 4.0, 8.0, 3.0)]
    theatre.dispatcher.dispatch()
    theatre.dispatcher.dispatch()
    for request, reason in zip(rows, (*[FinishReason.STOP] * 3, FinishReason.LENGTH), strict=True):
        theatre.dispatcher.dispatch()
        theatre.step(request.row_id, begun=(request.row_id,))
        theatre.step(request.row_id, end=reason)
    note = "document.getElementById('lengths-note').textContent"
    await page.until(f"{note} === '2 predicted: 100 % within a factor of 2'")


async def test_figures_agree_with_the_pictures(played: Played) -> None:
    page, theatre = played
    texts = "['requests', 'requests-note', 'first', 'latency', 'useful', 'useful-note']"
    told = f"{texts}.map((one) => document.getElementById(one).textContent).join(' | ')"
    theatre.clock.time += 1.0
    rows = [theatre.submit().row_id for _ in range(3)]
    theatre.dispatcher.dispatch()
    await page.until(f"{told}.startsWith('0 | running; 3 waiting | – | – |')")
    theatre.step(rows[0], begun=(rows[0],))
    # 5 cells of a prefill, 1 of them padding, and 6 that were read, 3 for padding and 2 for rows that had ended
    useful = "45 % | 36 % padding read, 18 % invalid"
    await page.until(f"{told} === '1 | running; 2 waiting | 1.0 s | – | {useful}'")


@pytest.mark.parametrize("width", [360, 768, 1280])
@pytest.mark.parametrize("dark", [False, True])
async def test_nothing_is_wider_than_the_window(page: Page, tmp_path: Path, width: int, dark: bool) -> None:
    await page.prefer("prefers-color-scheme", "dark" if dark else "light")
    await page.resize(width, 800)
    await page.until(f"document.documentElement.clientWidth === {width}")
    assert await page.value("document.documentElement.scrollWidth") == width
    ground = await page.value("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(14, 19, 26)" if dark else "rgb(244, 246, 249)")
    await page.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 5000


async def test_a_phone_shows_the_batch_first_and_the_whole_queue(played: Played) -> None:
    page, theatre = played
    theatre.dispatcher.waits.wait = lambda request: 754.0  # type: ignore[method-assign]
    await page.resize(360, 800)
    theatre.submit(predicted=12345.0)
    await page.until("document.querySelectorAll('#queue tbody tr').length === 1")
    first, second = [
        await page.value(f"document.querySelector('{one}').getBoundingClientRect().top")
        for one in ("#batch-title", ".figures")
    ]
    assert first < second
    box = "document.getElementById('queue').parentElement"
    assert await page.value(f"{box}.scrollWidth - {box}.clientWidth") == 0


async def test_everything_can_be_reached_with_the_tab_key_in_order(page: Page) -> None:
    seen: list[str] = []
    for _ in range(40):
        await page.press("Tab")
        name = "document.activeElement.id || document.activeElement.textContent.trim().slice(0, 20)"
        seen.append(await page.value(name))
        if len(set(seen)) < len(seen):
            break
    assert seen[:2] == ["Skip to the running ", "Chat"]
    wanted = ["key-open", "help-open", "freeze"]
    assert [name for name in seen if name in wanted] == wanted
    assert {"10 s", "5 min", "Rows as a table", "metrics"} <= set(seen)


async def test_single_keys_work_but_not_while_something_is_typed(page: Page) -> None:
    frozen = "document.getElementById('freeze').getAttribute('aria-pressed')"
    await page.press("f")
    assert await page.value(frozen) == "true"
    await page.press("k")
    await page.press("f")
    assert (await page.value(frozen), await page.value("document.activeElement.value")) == ("true", "f")
    await page.value("document.activeElement.blur(); document.getElementById('key').close()")
    await page.press("3")
    assert await page.value("document.querySelector('[data-span][aria-pressed=true]').textContent") == "1 min"
    await page.press("?")
    assert await page.value("document.getElementById('help').open")
    await page.value("document.getElementById('shortcuts-on').click()")
    await page.press("Escape")
    assert not await page.value("document.getElementById('help').open")
    await page.press("f")
    assert await page.value(frozen) == "true"


async def test_a_lost_connection_is_told_and_comes_back(played: Played) -> None:
    page, theatre = played
    await page.value("""{
        const link = document.getElementById('link');
        window.seen = [];
        new MutationObserver(() => window.seen.push(link.textContent)).observe(link, { childList: true });
    }""")
    theatre.feed.receive(ExecutorDied(99, "a fault, so that the feed ends"))
    await page.until("window.seen.join() === 'connection lost,connecting,live'")


async def test_a_key_is_asked_for_when_the_server_wants_one(browser: str) -> None:
    front, feed = Front(access=Access(Keyring(["a-key-of-this-server"]))), Theatre().feed
    async with live_server(front=front, feed=feed) as live, opened_page(browser) as page:
        # The page itself comes only to a browser whose user has typed the key into the browser's own dialog.
        await page.open(live.url, headers={"Authorization": "Bearer a-key-of-this-server"})
        await page.until(LIVE)
        await page.send_headers({})
        feed.receive(ExecutorDied(99, "a fault, so that the page has to connect again"))
        for key in ("another", "a-key-of-this-server"):
            await page.until("document.getElementById('key').open")
            assert "wants" in await page.value("document.getElementById('key-why').textContent")
            await page.value("document.getElementById('key-value').value = ''")
            await page.type(key)
            await page.press("Enter")
        await page.until(LIVE)
        assert await page.value("sessionStorage.getItem('lengthwise-key')") == "a-key-of-this-server"
