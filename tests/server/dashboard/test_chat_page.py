"""The chat page in a browser, before a server whose answers the tests play."""

import json
from collections.abc import AsyncIterator
from functools import partial

import pytest

from scheduler.request import Failure
from tests.browser import CHROMIUM, Page, opened_page
from tests.server.api.tools.test_tools import CLOCK, OTHER
from tests.server.fakes import ANSWER, answer, failing, say
from tests.server.live import Live, live_server, prompt_of

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, as Debian's package `chromium`")

SAID = "[...document.querySelectorAll('.turn')].map((one) => one.textContent)"
BOX = "document.getElementById('prompt').value"
ENDED = "document.getElementById('stop').disabled && document.getElementById('note').textContent.includes(' in all')"
"""All answers have come: of two, one may be told of while the other is still under way."""

MARKDOWN = """\
# Head

Some *stress*, **bold _in_ it**, `a < b`, 2 * 3 * 4, snake_case_name, ~~gone~~ and [a page](https://example.org/a_b).
1. one
2. two
   - inner

> quoted

| a | b |
|---|---|
| 1 | 2 |

<img src=x onerror="window.broken = true"> [bad](javascript:alert(1))
```python
print("<b>" * 2)
"""

SHOWN = (
    "<h3>Head</h3>"
    "<p>Some <em>stress</em>, <strong>bold <em>in</em> it</strong>, <code>a &lt; b</code>, 2 * 3 * 4, "
    'snake_case_name, <s>gone</s> and <a href="https://example.org/a_b" target="_blank" rel="noopener noreferrer">'
    "a page</a>.</p>"
    '<ol start="1"><li>one</li><li>two<ul><li>inner</li></ul></li></ol>'
    "<blockquote><p>quoted</p></blockquote>"
    "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table>"
    '<p>&lt;img src=x onerror="window.broken = true"&gt; [bad](javascript:alert(1))</p>'
    '<div class="code"><div><span>python</span><button type="button">Copy</button></div>'
    '<pre><code>print("&lt;b&gt;" * 2)</code></pre></div>'
)


CONTEXT = 4096  # the words about tools fit into it


@pytest.fixture
async def page(browser: str, live: Live) -> AsyncIterator[Page]:
    """The page, connected; whatever its console complains of fails the test."""
    async with opened_page(browser) as page:
        await page.open(f"{live.url}/chat")
        await page.until("document.getElementById('model')?.textContent === 'fake'")
        yield page
        assert page.problems == []


async def send(page: Page, text: str) -> None:
    await page.value("document.getElementById('prompt').focus()")
    await page.type(text)
    await page.press("Enter")


async def talk(page: Page, text: str) -> None:
    """Send a text and wait for the end of the answer."""
    await send(page, text)
    await page.until(ENDED)


async def retry(page: Page) -> None:
    """Ask again, and wait for the end of the answer."""
    await page.until("document.getElementById('retry')?.disabled === false")
    await page.value("document.getElementById('retry').click()")
    await page.until(ENDED)


async def set_field(page: Page, name: str, value: str) -> None:
    field = f"document.querySelector('#settings [name={name}]')"
    await page.value(f"{field}.value = {json.dumps(value)}; {field}.dispatchEvent(new Event('change'))")


def forgive(page: Page, status: str) -> None:
    """A status of which the browser itself complains."""
    page.problems[:] = [one for one in page.problems if status not in one]


async def render(page: Page, text: str) -> str:
    script = """(async () => {
        const { render } = await import('/dashboard/markdown.js');
        const place = document.createElement('div');
        place.append(render(%s));
        return place.innerHTML;
    })()"""
    shown = await page.value(script % json.dumps(text))
    assert isinstance(shown, str)
    return shown


async def test_a_conversation_goes_on_and_outlives_the_page(page: Page, live: Live) -> None:
    await talk(page, "Hi")
    assert " out · " in await page.value("document.getElementById('note').textContent")
    await page.go(f"{live.url}/chat")
    await page.until(f"{SAID}.length === 2")
    await talk(page, "More")
    assert await page.value(SAID) == ["Hi", ANSWER, "More", ANSWER]
    assert prompt_of(live) == f"user:Hi\nassistant:{ANSWER}\nuser:More\nassistant:"
    await page.value("document.getElementById('new').click()")
    await page.go(f"{live.url}/chat")
    await page.until("document.getElementById('model')?.textContent === 'fake'")
    assert await page.value(SAID) == []


async def test_settings_go_with_each_request_and_what_is_empty_is_left_out(page: Page, live: Live) -> None:
    for name, value in (("system", "Be brief"), ("temperature", "0.25"), ("max_tokens", "3")):
        await set_field(page, name, value)
    await talk(page, "Hi")
    (request,) = live.dispatcher.submitted
    assert bytes(request.prompt).decode() == "system:Be brief\nuser:Hi\nassistant:"
    assert (request.sampling.temperature, request.sampling.max_tokens, request.sampling.top_p) == (0.25, 3, 1.0)


@pytest.mark.parametrize("name", ["schema", "tools"])
async def test_what_is_no_json_is_said_beside_its_field_and_nothing_is_sent(page: Page, live: Live, name: str) -> None:
    """Nobody saw why the page stood still; asking again took the answer away, and failed."""
    await talk(page, "Hi")
    shown = f"document.getElementById('{name}-fault').checkVisibility()"
    said = f"document.getElementById('{name}-fault').textContent"
    await set_field(page, name, '{"type": ')
    for _ in range(2):  # before and after the page is loaded again
        await page.until(f"{said}.startsWith('This is not JSON: ')")
        await send(page, "More")
        await page.until(f"document.getElementById('settings').open && {shown}")
        await page.value("document.getElementById('retry').click()")
        assert await page.value(SAID) == ["Hi", ANSWER] and len(live.dispatcher.submitted) == 1
        await page.go(f"{live.url}/chat")
        await page.until(f"{SAID}.length === 2")
    await set_field(page, name, "")
    assert await page.value(said) == ""
    await talk(page, "More")


async def test_an_answer_follows_a_schema_that_is_json(page: Page, live: Live) -> None:
    await set_field(page, "schema", '{"type": "string"}')
    live.dispatcher.script = partial(say, '"Hi"')
    await talk(page, "Hi")
    assert await page.value(SAID) == ["Hi", '"Hi"']
    (request,) = live.dispatcher.submitted
    assert request.sampling.grammar is not None and '"string"' in request.sampling.grammar.text


async def test_a_tool_is_called_and_the_next_message_is_its_result(page: Page, live: Live) -> None:
    await set_field(page, "tools", json.dumps([CLOCK]))
    live.dispatcher.script = partial(say, OTHER)
    await talk(page, "When?")
    assert await page.value("document.querySelector('.turn.assistant code').textContent") == "clock({})"
    await page.until("document.getElementById('prompt').placeholder === 'The result of clock({})'")
    await page.go(f"{live.url}/chat")
    await page.until("document.getElementById('prompt')?.placeholder === 'The result of clock({})'")
    live.dispatcher.script = answer
    await talk(page, "noon")
    prompt = prompt_of(live)
    assert "user:When?" in prompt and OTHER in prompt and "noon" in prompt
    assert (await page.value(SAID))[-2:] == ["noon", ANSWER]


async def test_two_answers_stand_side_by_side_and_one_is_kept(page: Page, live: Live) -> None:
    await set_field(page, "temperature", "0.5")
    await set_field(page, "beside", "1.5")
    live.dispatcher.script = lambda row: say(f"at {row.sampling.temperature}", row)
    await send(page, "Hi")
    await page.until(f"{ENDED} && document.querySelectorAll('.keep').length === 2")
    assert (await page.value("document.getElementById('note').textContent")).count(" in all") == 2
    left, right = await page.value("[...document.querySelectorAll('.pair .turn')].map((one) => one.offsetLeft)")
    assert left != right
    hot = "[...document.querySelectorAll('.turn')].find((one) => one.textContent.startsWith('at 1.5'))"
    await page.value(f"{hot}.querySelector('.keep').click()")
    await send(page, "More")
    await page.until(f"{ENDED} && document.querySelectorAll('.pair').length === 2")
    prompts = {bytes(request.prompt).decode() for request in live.dispatcher.submitted[2:]}
    assert prompts == {"user:Hi\nassistant:at 1.5\nuser:More\nassistant:"}
    await retry(page)
    await page.until("document.querySelectorAll('.keep').length === 2")
    assert len(live.dispatcher.submitted) == 6
    assert await page.value("document.querySelectorAll('.pair').length") == 2


async def test_an_answer_can_be_stopped_and_asked_for_again(page: Page, live: Live) -> None:
    live.dispatcher.pause = 3
    await send(page, "Hi")
    await page.until("document.querySelector('.turn.assistant.busy')?.textContent === 'Gr'")
    await page.press("Escape")
    await page.until("document.getElementById('note').textContent.startsWith('Stopped')")
    await live.dispatcher.until(lambda: bool(live.dispatcher.cancelled))
    live.dispatcher.pause = None
    await retry(page)
    assert await page.value(SAID) == ["Hi", ANSWER]
    assert prompt_of(live) == "user:Hi\nassistant:"


async def test_the_place_in_the_queue_is_told(page: Page, live: Live) -> None:
    live.dispatcher.crowd(waiting=2)
    live.dispatcher.waits.wait = lambda request: 1.25  # type: ignore[method-assign]
    await send(page, "Hi")
    await page.until("document.getElementById('note').textContent.startsWith('Place 3 in the queue, about')")
    live.dispatcher.release()
    await page.until(ENDED)


async def test_a_refusal_is_told_and_not_remembered_as_an_answer(page: Page, live: Live) -> None:
    """Its reason was gone with the page, and the message with both, unless somebody had copied it."""
    refused = "document.querySelector('.turn.failed')?.textContent.includes('context holds 4096 tokens')"
    await send(page, "x" * 5000)
    await page.until(refused)
    assert await page.value("JSON.parse(localStorage.getItem('lengthwise-chat')).turns.length") == 1
    for _ in range(2):  # before and after the page is loaded again
        assert await page.value(BOX) == "x" * 5000
        assert (await page.value(SAID))[0] == "x" * 5000
        await page.go(f"{live.url}/chat")
        await page.until(refused)
    await talk(page, "Hi")
    await page.go(f"{live.url}/chat")
    await page.until(f"{SAID}.length === 2")
    assert (await page.value(SAID), await page.value(BOX)) == (["Hi", ANSWER], "")
    forgive(page, "400")


async def test_why_an_answer_broke_off_outlives_the_page_and_the_next_answer_ends_it(page: Page, live: Live) -> None:
    live.dispatcher.script = failing
    await send(page, "Hi")
    for _ in range(2):
        await page.until("document.querySelector('.turn.failed')?.textContent.includes('the device caught fire')")
        assert await page.value(BOX) == ""
        await page.go(f"{live.url}/chat")
    live.dispatcher.script = answer
    await retry(page)
    assert await page.value("JSON.parse(localStorage.getItem('lengthwise-chat')).refused") == ""


async def test_a_message_that_is_asked_again_leaves_the_box(page: Page, live: Live) -> None:
    live.dispatcher.abort_all("gone", Failure.EXECUTOR)
    await send(page, "Hi")
    await page.until(f"document.querySelector('.turn.failed') && {BOX} === 'Hi'")
    live.dispatcher._draining = False
    await retry(page)
    assert await page.value(BOX) == ""
    forgive(page, "503")


async def test_what_was_refused_is_replaced_by_the_next_message(page: Page, live: Live) -> None:
    """It was sent again with each later message, which was then refused as well."""
    await send(page, "x" * 5000)
    await page.until("document.querySelector('.turn.failed') && !document.getElementById('retry').disabled")
    await set_field(page, "tools", json.dumps([CLOCK]))
    live.dispatcher.script = partial(say, OTHER + OTHER.replace("{}", '{"zone": 1}'))
    await talk(page, "When?")
    first = "document.getElementById('prompt').placeholder === 'The result of clock({})'"
    await page.until(first)
    await send(page, "x" * 5000)
    await page.until("document.getElementById('prompt').placeholder.includes('zone')")
    await send(page, "one")
    await page.until(f"document.querySelectorAll('.turn.failed').length === 2 && {first}")
    live.dispatcher.script = answer
    await send(page, "noon")
    await page.until("document.getElementById('prompt').placeholder.includes('zone')")
    await talk(page, "night")
    turns = await page.value("JSON.parse(localStorage.getItem('lengthwise-chat')).turns")
    assert [turn["content"] for turn in turns] == ["When?", "", "noon", "night", ANSWER]
    forgive(page, "400")


async def test_markdown_becomes_nodes_and_markup_of_the_model_stays_text(page: Page, live: Live) -> None:
    assert await render(page, MARKDOWN) == SHOWN
    live.dispatcher.script = partial(say, "**a** <img src=x onerror='window.broken = true'>")
    await talk(page, "Hi")
    assert await page.value("document.querySelector('.turn.assistant strong').textContent") == "a"
    assert await page.value("[document.querySelector('.turn img'), window.broken ?? null]") == [None, None]


async def test_marks_that_never_end_take_no_time(page: Page) -> None:
    marks = ["*", "**a", "`", "[a](https://", "> ", "_a", "1. ", "| ", "~~", "```\n", "  - a\n"]
    script = """import('/dashboard/markdown.js').then(({ render }) => %s.map((mark) => {
        const begin = performance.now();
        render(mark.repeat(5000));
        return performance.now() - begin;
    }))"""
    assert max(await page.value(script % json.dumps(marks))) < 5000


@pytest.mark.parametrize("width", [360, 1280])
async def test_nothing_is_wider_than_the_window(page: Page, live: Live, width: int) -> None:
    await page.resize(width, 700)
    await page.until(f"document.documentElement.clientWidth === {width}")
    live.dispatcher.script = partial(say, f"```\n{'x' * 120}\n```\n")
    await talk(page, "a" * 60)
    assert await page.value("document.documentElement.scrollWidth") == width
    assert await page.value("document.documentElement.scrollHeight") == 700


async def test_a_key_is_asked_for_when_the_server_wants_one(browser: str) -> None:
    async with live_server(keys=["a-key-of-this-server"]) as live, opened_page(browser) as page:
        await page.open(f"{live.url}/chat", headers={"Authorization": "Bearer a-key-of-this-server"})
        await page.until("document.getElementById('model')?.textContent === 'fake'")
        await page.send_headers({})
        await send(page, "Hi")
        await page.until("document.getElementById('key').open")
        await page.type("a-key-of-this-server")
        await page.press("Enter")
        await page.until("!document.getElementById('key').open")
        await retry(page)


async def test_on_a_phone_the_button_is_beside_the_input(page: Page) -> None:
    """It stood alone on a line of its own."""
    await page.resize(390, 800)
    await page.until("document.documentElement.clientWidth === 390")
    prompt, button = (f"document.getElementById('{one}').getBoundingClientRect()" for one in ("prompt", "send"))
    assert await page.value(f"{button}.left >= {prompt}.right && {button}.bottom <= {prompt}.bottom + 1")
    assert await page.value("document.documentElement.scrollWidth") == 390


async def test_nothing_blinks_for_those_who_want_things_to_stand_still(page: Page) -> None:
    blinking = """(() => {
        const one = document.createElement('div');
        one.className = 'turn busy';
        document.body.append(one);
        const name = getComputedStyle(one, '::after').animationName;
        one.remove();
        return name;
    })()"""
    assert await page.value(blinking) == "blink"
    await page.prefer("prefers-reduced-motion", "reduce")
    assert await page.value(blinking) == "none"
