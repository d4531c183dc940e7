"""`lengthwise chat` against a live server: with pipes, at a terminal, and its conversation by itself."""

import asyncio
import os
import pty
import signal
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, redirect_stderr, redirect_stdout
from functools import partial
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest

from loadgen.result_file import PROGRAM
from models.errors import UserError
from server.cli.commands.chat import Chat, ChatSession
from server.cli.main import main
from tests.server.fakes import ANSWER, FakeText, say
from tests.server.live import Live, live_server, prompt_of

ROOT = Path(__file__).parents[4]
DEAD_END = "http://127.0.0.1:1"


async def chat(url: str, typed: str, *flags: str) -> tuple[int, str, str]:
    """Exit code, output and errors of the command with `typed` in its pipe, in this process."""
    out, err, pipe = StringIO(), StringIO(), TextIOWrapper(BytesIO(typed.encode()))
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr("sys.argv", ["lengthwise", "chat", "--url", url, *flags])
        patch.setattr("sys.stdin", pipe)
        return await asyncio.to_thread(main), out.getvalue(), err.getvalue()


async def test_without_a_terminal_it_answers_each_line_and_prints_nothing_else(live: Live) -> None:
    command = [*PROGRAM, "chat", "--url", live.url]
    command += ["--system", "Be brief", "--temperature", "0.5", "--max-tokens", "100"]
    process = await create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    out, err = await process.communicate(b"Hi\n\nMore\n/reset\nAnew\n")
    assert (process.returncode, out.decode(), err) == (0, f"{ANSWER}\n" * 3, b"")
    prompts = [FakeText().decode(request.prompt) for request in live.dispatcher.submitted]
    assert prompts == [
        "system:Be brief\nuser:Hi\nassistant:",
        f"system:Be brief\nuser:Hi\nassistant:{ANSWER}\nuser:More\nassistant:",
        "system:Be brief\nuser:Anew\nassistant:",
    ]
    assert {(one.sampling.temperature, one.sampling.max_tokens) for one in live.dispatcher.submitted} == {(0.5, 100)}


STEERING = "a\x1b]52;c;eA==\x07b\x1b[2Jc\x9b2Jd\re\x00\x7ff\tg\nh"
"""Sets the clipboard, clears the screen twice, and writes over its own line."""


async def test_control_characters_of_an_answer_never_reach_the_terminal(live: Live) -> None:
    """A quoted page could make a model set the user's clipboard; each byte here comes as a piece of its own."""
    live.dispatcher.script = partial(say, STEERING)
    code, out, err = await chat(live.url, "Hi\n")
    assert (code, out, err) == (0, "a]52;c;eA==b[2Jc2Jdef\tg\nh\n", "")


@pytest.mark.parametrize("word", ["/exit", "/quit", "/bye"])
async def test_a_word_of_its_own_leaves_and_is_no_message(live: Live, word: str) -> None:
    """It was sent to the model."""
    assert await chat(live.url, f"Hi\n{word}\nMore\n") == (0, f"{ANSWER}\n", "")
    assert len(live.dispatcher.submitted) == 1


async def test_an_unknown_command_is_named_and_a_path_is_a_message(live: Live) -> None:
    _, out, _ = await chat(live.url, "/nothing\n/etc/hosts\n")
    assert out == f"unknown command /nothing; /help shows what there is\n{ANSWER}\n"
    assert len(live.dispatcher.submitted) == 1


async def test_a_key_is_brought_where_the_server_wants_one() -> None:
    async with live_server(keys=["a-key-for-the-tests"]) as live:
        assert (await chat(live.url, "Hi\n", "--api-key", "a-key-for-the-tests"))[:2] == (0, f"{ANSWER}\n")
        code, out, err = await chat(live.url, "Hi\n")
        assert (code, out) == (1, "") and "Bearer" in err


async def test_without_a_server_it_says_how_to_start_one() -> None:
    told = f"no server answers at {DEAD_END}/v1/models: start one with `lengthwise serve`, or name another with --url"
    assert await chat(DEAD_END, "Hi\n") == (1, "", f"lengthwise: error: {told}\n")


async def test_a_turn_that_fails_is_told_and_makes_the_exit_code_1(live: Live) -> None:
    code, out, err = await chat(live.url, f"{'x' * 300}\nHi\n")
    assert (code, out) == (1, f"{ANSWER}\n")
    assert "the context holds 256 tokens" in err


class Terminal:
    """The command at a terminal."""

    def __init__(self, process: Process, leader: int, shown: asyncio.StreamReader) -> None:
        self.process, self._leader, self._shown = process, leader, shown

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())

    async def read(self, end: str = "> ") -> str:
        """What is shown up to there."""
        return (await self._shown.readuntil(end.encode())).decode().removesuffix(end)


@asynccontextmanager
async def at_terminal(url: str, *, output: bool = False) -> AsyncIterator[Terminal]:
    """Its output goes there too, or into a pipe."""
    leader, follower = pty.openpty()
    command = [*PROGRAM, "chat", "--url", url]
    out = follower if output else PIPE
    process = await create_subprocess_exec(*command, cwd=ROOT, stdin=follower, stdout=out, stderr=PIPE)
    os.close(follower)
    shown = asyncio.StreamReader() if process.stdout is None else process.stdout
    file = os.fdopen(leader, "rb", 0)
    with closing(file):
        if output:
            protocol = asyncio.StreamReaderProtocol(shown)
            await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, file)
        yield Terminal(process, leader, shown)


async def test_ctrl_c_stops_the_answer_and_at_the_prompt_ends_the_conversation(live: Live) -> None:
    live.dispatcher.pause = 2
    async with at_terminal(live.url) as terminal:
        await terminal.read()
        terminal.type("Hi\n")
        await terminal.read("Gr")
        terminal.process.send_signal(signal.SIGINT)
        await terminal.read("[stopped]\n> ")
        await live.dispatcher.until(lambda: len(live.dispatcher.cancelled) == 1)
        terminal.process.send_signal(signal.SIGINT)
        # A signal that comes between the prompt and the read behind it is seen only when the read returns.
        terminal.type("\n")
        _, err = await terminal.process.communicate()
        assert (terminal.process.returncode, err) == (0, b"")


async def test_at_a_terminal_the_place_in_the_queue_is_shown_until_the_answer_begins(live: Live) -> None:
    live.dispatcher.crowd(waiting=2)
    live.dispatcher.waits.wait = lambda request: 1.25  # type: ignore[method-assign]
    async with at_terminal(live.url, output=True) as terminal:
        await terminal.read()
        terminal.type("Hi\n")
        await terminal.read("\r\x1b[KPlace 3 in the queue, about 1.2 s.")
        live.dispatcher.release()
        assert await terminal.read(ANSWER) == "\r\x1b[K"
        await terminal.read()
        terminal.process.send_signal(signal.SIGINT)
        terminal.type("\n")
        await terminal.process.wait()


async def test_at_a_terminal_a_text_may_have_lines(live: Live) -> None:
    async with at_terminal(live.url) as terminal:
        await terminal.read()
        terminal.type('"""one\n')
        assert await terminal.read("... ") == ""
        terminal.type('two"""\n')
        assert await terminal.read() == f"{ANSWER}\n"
        assert prompt_of(live) == "user:one\ntwo\nassistant:" and len(live.dispatcher.submitted) == 1
        terminal.type("/nothing\n")
        assert await terminal.read() == "unknown command /nothing; /help shows what there is\n"
        terminal.type("\x04")
        await terminal.process.communicate()
        assert terminal.process.returncode == 0


async def test_an_answer_that_is_stopped_stays_in_the_conversation_as_far_as_it_came(live: Live) -> None:
    live.dispatcher.pause = 2
    conversation = ChatSession(Chat(url=f"{live.url}/v1/"))

    def read_two() -> list[object]:
        with closing(conversation.say("Hi")) as told:
            return [next(told), next(told)]

    await asyncio.to_thread(conversation.connect)
    assert conversation.chat.model == "fake", "the address may end in v1"
    assert await asyncio.to_thread(read_two) == ["G", "r"]
    await live.dispatcher.until(lambda: len(live.dispatcher.cancelled) == 1)
    assert conversation.turns == [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Gr"}]


async def test_a_turn_that_fails_is_undone(live: Live) -> None:
    conversation = ChatSession(Chat(url=live.url, model="unknown"))
    with pytest.raises(UserError, match="'unknown' is not served here; use fake"):
        await asyncio.to_thread(list, conversation.say("Hi"))
    assert conversation.turns == []


async def test_a_page_that_is_no_server_of_ours_is_named(live: Live) -> None:
    with pytest.raises(UserError, match="nothing at '/other/v1/models'"):
        await asyncio.to_thread(ChatSession(Chat(url=f"{live.url}/other")).connect)
    with pytest.raises(UserError, match="no Lengthwise server; name one with --url"):
        ChatSession(Chat(url="nowhere")).connect()
