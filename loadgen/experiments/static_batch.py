"""How fast is the server next to transformers' own `generate`, on this machine, in one run?

Starts `lengthwise serve`, then takes turns: n concurrent requests over HTTP, and one static batch of the same n
prompts through `generate` in this process. Prints medians, their spread, and the ratio. It knows the server only
by its command line and its API.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, PreTrainedModel

from loadgen.program import PROGRAM

Prompts = list[list[int]]
READY_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class Result:
    """Output tokens per second at one concurrency, a figure a round."""

    concurrency: int
    server: tuple[float, ...]
    generate: tuple[float, ...]

    @property
    def ratio(self) -> float:
        return statistics.median(self.server) / statistics.median(self.generate)


def main() -> int:
    args = _arguments()
    console = Console()
    folder = _resolve(args.model)
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, args.dtype))
    with _server(folder, args.dtype) as url:
        results = [_measure(url, network, concurrency, args, console) for concurrency in args.concurrency]
    console.print(_table(results, args))
    if args.save_result:
        args.save_result.write_text(json.dumps({"machine": _machine(), "results": [asdict(r) for r in results]}))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="loadgen.experiments.static_batch", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="as for `lengthwise serve`")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32], help="requests at a time")
    parser.add_argument("--input-len", type=int, default=64, help="prompt tokens of a request")
    parser.add_argument("--output-len", type=int, default=64, help="tokens to generate for a request")
    parser.add_argument("--rounds", type=int, default=5, help="turns that server and generate take each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-result", type=Path, metavar="FILE", help="write the figures as JSON")
    return parser.parse_args()


def _resolve(model: str) -> Path:
    command = [*PROGRAM, "models", "--path", model]
    return Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())


@contextmanager
def _server(folder: Path, dtype: str) -> Iterator[str]:
    """A server of its own on a free loopback port, gone afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [*PROGRAM, "serve", str(folder), "--dtype", dtype, "--port", str(port)]
    process = subprocess.Popen([*command, "--log-level", "warning"])
    try:
        url = f"http://127.0.0.1:{port}"
        asyncio.run(_wait_until_ready(url, process))
        yield url
    finally:
        process.terminate()
        process.wait(timeout=60)


async def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_TIMEOUT
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                async with session.get(f"{url}/health/ready") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.2)
    raise SystemExit("the server did not become ready")


def _measure(
    url: str, network: PreTrainedModel, concurrency: int, args: argparse.Namespace, console: Console
) -> Result:
    """Rounds of both, taking turns, after one of each that does not count."""
    rng = random.Random(args.seed)
    tokens = concurrency * args.output_len
    server: list[float] = []
    generate: list[float] = []
    for number in range(args.rounds + 1):
        prompts = [[rng.randrange(100, 20_000) for _ in range(args.input_len)] for _ in range(concurrency)]
        server.append(tokens / _timed(lambda: asyncio.run(_request_all(url, prompts, args.output_len))))  # noqa: B023
        generate.append(tokens / _timed(lambda: _generate(network, prompts, args.output_len)))  # noqa: B023
        if number:
            console.print(
                f"{concurrency:4d} at a time, round {number}: {server[-1]:.1f} against {generate[-1]:.1f} tok/s"
            )
    return Result(concurrency, tuple(server[1:]), tuple(generate[1:]))


def _timed(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


async def _request_all(url: str, prompts: Prompts, output_len: int) -> None:
    async with aiohttp.ClientSession(url) as session:
        await asyncio.gather(*(_request(session, prompt, output_len) for prompt in prompts))


async def _request(session: aiohttp.ClientSession, prompt: list[int], output_len: int) -> None:
    """One streamed completion, read to its end; raises when it is not as long as asked."""
    body = {"prompt": prompt, "max_tokens": output_len, "temperature": 0, "ignore_eos": True, "stream": True}
    body["stream_options"] = {"include_usage": True}
    last = b""
    async with session.post("/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            last = line if b'"usage"' in line else last
    made = json.loads(last.removeprefix(b"data: "))["usage"]["completion_tokens"]
    if made != output_len:
        raise SystemExit(f"asked for {output_len} tokens, got {made}")


@torch.inference_mode()
def _generate(network: PreTrainedModel, prompts: Prompts, output_len: int) -> None:
    tokens = torch.tensor(prompts)
    network.generate(  # type: ignore[operator]
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=output_len,
        min_new_tokens=output_len,
        do_sample=False,
    )


def _table(results: Sequence[Result], args: argparse.Namespace) -> Table:
    title = f"output tokens/s, {args.input_len} in / {args.output_len} out, {args.dtype}, {_machine()}"
    table = Table("at a time", "lengthwise serve", "transformers generate", "ratio", title=title)
    for result in results:
        table.add_row(str(result.concurrency), _spread(result.server), _spread(result.generate), f"{result.ratio:.2f}")
    return table


def _spread(figures: Sequence[float]) -> str:
    return f"{statistics.median(figures):.1f} ({min(figures):.1f}-{max(figures):.1f})"


def _machine() -> str:
    return f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"


if __name__ == "__main__":
    sys.exit(main())
