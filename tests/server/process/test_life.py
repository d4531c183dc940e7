"""The life of the process: the port, the ready lines, signals, pauses, draining, exit codes."""

import asyncio
import fcntl
import gc
import os
import re
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import orjson
import pytest

from engine.messages import RowUpdate
from models.errors import UserError
from models.network.generation_config import SamplingDefaults
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.profile_file import Conditions
from scheduler.stream import TokenStream, Wakeups
from server.api.served_model import AnswerDefaults
from server.http.port import take_port
from server.http.service import HostMachine
from server.process.life import drain, shorten_pauses, summarize
from tests.server.fakes import ANSWER
from tests.server.live import Live, chat_body, parse_events, text_of

ROOT = Path(__file__).parents[3]

AT_ONCE = 60.0
"""Seconds that a busy machine may take for what waits for nothing."""


@dataclass(frozen=True, slots=True)
class Server:
    """A process that serves."""

    process: Process
    url: str
    session: aiohttp.ClientSession

    @asynccontextmanager
    async def begun_stream(self) -> AsyncIterator[aiohttp.ClientResponse]:
        """A stream whose first event has come."""
        body = orjson.dumps(chat_body(stream=True))
        async with self.session.post(f"{self.url}/v1/chat/completions", data=body) as response:
            await response.content.readuntil(b"\n\n")
            yield response

    async def status(self, path: str) -> int:
        async with self.session.get(self.url + path) as response:
            return response.status


async def start(model: str, port: int = 0, timeout: float = 60, stderr: int = PIPE) -> Process:
    arguments = [sys.executable, "-m", "tests.server.serve_fake", model, str(port), str(timeout)]
    return await create_subprocess_exec(*arguments, cwd=ROOT, stdout=PIPE, stderr=stderr)


async def next_line(process: Process) -> bytes:
    assert process.stdout is not None
    return await process.stdout.readline()


async def signalled(process: Process, said: bytes, number: int) -> tuple[int | None, bytes, bytes]:
    """Exit code and later output of a process that gets a signal once it has said this line."""
    assert await next_line(process) == said
    process.send_signal(number)
    stdout, stderr = await process.communicate()
    return process.returncode, stdout, stderr


@asynccontextmanager
async def serving(model: str, timeout: float = 60, stderr: int = PIPE) -> AsyncIterator[Server]:
    process = await start(model, timeout=timeout, stderr=stderr)
    try:
        await next_line(process)
        ready = (await next_line(process)).decode()
        found = re.fullmatch(r"Lengthwise ready on (http://127\.0\.0\.1:\d+) \(fake, 1 executor, \d+\.\d s\)\n", ready)
        assert found is not None, ready
        assert (await next_line(process)).endswith(f"lengthwise chat --url {found[1]}\n".encode())
        async with aiohttp.ClientSession() as session:
            yield Server(process, found[1], session)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_what_does_not_end_in_time_ends_with_an_error_event_and_the_end_marker() -> None:
    async with serving("stuck", timeout=0.5) as server, server.begun_stream() as stream:
        server.process.send_signal(signal.SIGTERM)
        (error,) = parse_events(await stream.read())
        words = {"message": "the server is shutting down", "type": "ServiceUnavailableError"}
        assert error["error"] == {**words, "param": None, "code": "server_shutting_down"}
        assert await server.process.wait() == 0


async def test_while_answers_end_new_calls_are_refused_and_a_second_signal_ends_all_at_once() -> None:
    async with serving("stuck", timeout=3600) as server, server.begun_stream() as stream:
        server.process.send_signal(signal.SIGINT)
        while await server.status("/health/ready") != 503:
            pass
        assert await server.status("/health/live") == 200
        async with server.session.post(f"{server.url}/v1/chat/completions", json=chat_body()) as refused:
            assert (refused.status, refused.headers["Connection"]) == (503, "close")
            assert (await refused.json())["error"]["code"] == "server_shutting_down"
        server.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(AT_ONCE):
            parse_events(await stream.read())
            assert await server.process.wait() == 0
    with take_port("127.0.0.1", int(server.url.rpartition(":")[2])):
        pass


@pytest.mark.parametrize(("model", "code"), [("busy at the end", 0), ("holding the interpreter", -signal.SIGALRM)])
async def test_after_a_second_signal_nothing_keeps_the_process(model: str, code: int) -> None:
    """A grammar that was being compiled did, for as long as it took."""
    async with serving(model) as server:
        server.process.send_signal(signal.SIGTERM)
        assert await next_line(server.process) == b"leaving\n"
        server.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(AT_ONCE):
            assert await server.process.wait() == code


async def test_a_log_that_is_not_read_keeps_nobody_from_being_served_and_the_process_from_ending() -> None:
    """As soon as the pipe was full, all stood still: streams, /health/live, SIGTERM."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    async with serving("fake", stderr=writer) as server:
        for _ in range(100):
            assert await server.status("/nothing") == 404
        server.process.send_signal(signal.SIGTERM)
        assert await server.process.wait() == 0
    os.close(writer)
    os.close(reader)


async def test_when_nothing_is_left_that_could_serve_clients_are_told_and_the_process_ends_with_70() -> None:
    """It used to stay for ever, ready for nothing, and no service manager could know."""
    async with serving("mortal") as server, server.begun_stream() as stream:
        (error,) = parse_events(await stream.read())
        assert (error["error"]["type"], error["error"]["code"]) == ("ServiceUnavailableError", "executor_failed")
        assert await server.process.wait() == 70


async def test_a_loop_that_stands_still_ends_the_process_which_tells_where_all_threads_stood() -> None:
    async with serving("standing still") as server:
        with pytest.raises(aiohttp.ClientError):
            async with server.session.post(f"{server.url}/v1/chat/completions", json=chat_body()):
                pass
        _, stderr = await server.process.communicate()
    assert server.process.returncode == 70
    assert b"Current thread" in stderr and b"Thread 0x" in stderr
    assert b'threading.py", line' in stderr and b"in wait" in stderr and b"the event loop stands still" in stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_while_the_program_is_being_imported_ends_it_with_0(number: int, tmp_path: Path) -> None:
    """It ended with -15, for the three seconds that imports take: for systemd, a failure."""
    (tmp_path / "aiohttp.py").write_text("import threading\nprint('importing', flush=True)\nthreading.Event().wait()\n")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "LENGTHWISE_CACHE": str(tmp_path)}
    command = [sys.executable, "-P", "-m", "lengthwise", "serve", "--port", "0"]
    process = await create_subprocess_exec(*command, cwd=tmp_path, env=environ, stdout=PIPE, stderr=PIPE)
    assert await signalled(process, b"importing\n", number) == (0, b"", b"")


async def test_a_signal_while_the_model_loads_ends_the_process_at_once_with_0() -> None:
    assert await signalled(await start("endless load"), b"loading endless load\n", signal.SIGTERM) == (0, b"", b"")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_a_signal_while_the_model_is_fetched_lets_what_is_half_done_be_cleaned_up(number: int, code: int) -> None:
    """It used to end the process on the spot: pip lived on, and a part of the model stayed in the cache."""
    ended = await signalled(await start("endless fetch"), b"fetching\n", number)
    assert ended[:2] == (code, b"cleaned up\n")


@pytest.mark.parametrize(
    ("model", "said"),
    [("absent", "lengthwise: error: unknown model 'absent': name another\n"), ("fake", "choose another with --port")],
)
async def test_what_keeps_the_server_from_starting_is_said_in_one_line_with_exit_code_1(model: str, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = await start(model, taken.getsockname()[1] if model == "fake" else 0)
        _, stderr = await process.communicate()
    assert process.returncode == 1
    assert said in stderr.decode()
    assert stderr.count(b"\n") == 1


async def test_draining_lets_running_answers_end(live: Live) -> None:
    live.dispatcher.pause = 3
    stream = asyncio.create_task(live.stream_chat())
    await live.dispatcher.until(lambda: bool(live.dispatcher.submitted))
    draining = asyncio.create_task(drain(live.service, 60, asyncio.Event()))
    await live.dispatcher.until(lambda: live.dispatcher.draining or draining.done())
    live.dispatcher.release()
    assert text_of(await stream) == ANSWER
    await draining


@pytest.mark.parametrize("host", ["no such host", "203.0.113.7"])
def test_an_address_of_another_machine_is_refused_with_the_remedy(host: str) -> None:
    with pytest.raises(UserError, match="127.0.0.1"), take_port(host, 0):
        pass


CONDITIONS = Conditions("fake", "bfloat16", "int4", "A Processor", 2, 512)
PRICES = Bilinear(p1=0, p2=0, p3=0, p4=0, d1=0.00001, d2=0.001, d3=0, d4=0.02)
"""At 512 tokens a row adds 6.12 ms to 20: 38 tokens/s alone, 155 for 64."""


SPEEDS = [
    (PRICES, "about 38 tokens/s for one request, 155 for 64 together, as measured here"),
    (None, "not known yet; it is learned from what is served"),
]


@pytest.mark.parametrize(("prices", "speed"), SPEEDS)
async def test_it_tells_what_serves_and_what_to_try(live: Live, prices: Bilinear | None, speed: str) -> None:
    service = replace(live.service, machine=HostMachine(CONDITIONS, prices))
    assert summarize(service, "http://127.0.0.1:8000", 1.25).splitlines() == [
        "Lengthwise ready on http://127.0.0.1:8000 (fake, 1 executor, 1.2 s)",
        "  weights   bfloat16, kept as int4, on A Processor, 2 threads",
        "  room      64 slots, 1,000,000 tokens of KV cache; a request may take 256",
        f"  speed     {speed}",
        "  open http://127.0.0.1:8000 or run: lengthwise chat",
    ]


BY_DEFAULT = "  answers   without max_tokens end after 128 tokens: --default-max-tokens changes that"
BY_MODEL = "  answers   all end after 66 tokens: max_new_tokens of the model's generation config"
UNASKED = [
    # (the model's max_new_tokens, the server's default, what is told of them)
    (None, None, []),
    (None, 128, [BY_DEFAULT]),
    (256, 1024, []),  # the context ends them
    (66, None, [BY_MODEL]),
]


@pytest.mark.parametrize(("new", "most", "told"), UNASKED)
async def test_it_tells_what_ends_answers(live: Live, new: int | None, most: int | None, told: object) -> None:
    model = replace(live.service.model, defaults=AnswerDefaults(SamplingDefaults(max_new_tokens=new), max_tokens=most))
    service = replace(live.service, served_model=model, machine=HostMachine(CONDITIONS, PRICES))
    lines = summarize(service, "http://127.0.0.1:8000", 1.25).splitlines()
    assert [line for line in lines if "answers" in line] == told


async def test_another_port_is_named_to_the_chat_and_a_unix_socket_has_no_page(live: Live) -> None:
    elsewhere = summarize(live.service, "https://127.0.0.1:18000", 1.0)
    assert elsewhere.endswith("\n  open https://127.0.0.1:18000 or run: lengthwise chat --url https://127.0.0.1:18000")
    assert summarize(live.service, "unix:/run/it", 1.0) == "Lengthwise ready on unix:/run/it (fake, 1 executor, 1.0 s)"


@pytest.mark.usefixtures("interpreter_settings")
async def test_what_a_thousand_streams_make_for_moments_does_not_count_as_old() -> None:
    """Every ninety steps or so all objects of all streams were looked through, for 0.1 s."""

    async def follow(stream: TokenStream) -> None:
        async for _ in stream:
            pass

    wakeups, collections = Wakeups(), Counter[int]()
    streams = [TokenStream(wakeups) for _ in range(1000)]
    reading = [asyncio.create_task(follow(stream)) for stream in streams]
    await asyncio.sleep(0)
    shorten_pauses()

    def count(phase: str, info: dict[str, int]) -> None:
        collections[info["generation"]] += phase == "start"

    gc.callbacks.append(count)
    for _ in range(50):
        for row, stream in enumerate(streams):
            stream.put(RowUpdate(row, (1,), "a"))
        await asyncio.sleep(0)
    gc.callbacks.remove(count)
    for task in reading:
        task.cancel()
    assert not collections[1] and not collections[2], collections
