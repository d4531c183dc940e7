"""How long a user with single calls waits beside another who always has forty open, at servers that run already.

    python -m tests.tools.flood direct=http://127.0.0.1:8001 gateway=http://127.0.0.1:8000

Users are told apart by `user` in the body, so a gateway wants `--fair`. Answers have exactly as many tokens as asked.
"""

import argparse
import asyncio
import random
import statistics
import time

import aiohttp


async def ask(session: aiohttp.ClientSession, url: str, args: argparse.Namespace, user: str, tokens: int) -> float:
    """Seconds from the call to the end of its answer."""
    prompt = f"{user} asks for number {random.random()}: tell a long story."
    body = {"model": args.model, "messages": [{"role": "user", "content": prompt}], "stream": True}
    body |= {"max_tokens": tokens, "ignore_eos": True, "user": user}
    start = time.perf_counter()
    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
        told = await answer.read()
        if answer.status != 200 or b'"error"' in told[-500:]:
            raise RuntimeError(told[-500:].decode())
    return time.perf_counter() - start


async def measure(url: str, args: argparse.Namespace, heavy: int) -> list[float]:
    """Seconds of the light user's calls, one after another, beside so many open ones of a heavy user."""
    chance = random.Random(0)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as session:

        async def flood() -> None:
            while True:  # lengths with a long tail
                await ask(session, url, args, "heavy", min(4 * args.tokens, int(chance.lognormvariate(4.2, 0.8)) + 1))

        flooding = [asyncio.ensure_future(flood()) for _ in range(heavy)]
        await asyncio.sleep(args.before if heavy else 0)
        try:
            return [await ask(session, url, args, "light", args.tokens) for _ in range(args.calls)]
        finally:
            for one in flooding:
                one.cancel()
            ended = await asyncio.gather(*flooding, return_exceptions=True)
            if fault := next((one for one in ended if isinstance(one, RuntimeError)), None):
                raise fault


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("servers", nargs="+", metavar="NAME=URL")
    parser.add_argument("--model", default="")
    parser.add_argument("--open", type=int, default=40, help="calls that the heavy user always has open")
    parser.add_argument("--calls", type=int, default=10, help="calls of the light user, alone and beside the other")
    parser.add_argument("--tokens", type=int, default=100, help="tokens of each of them")
    parser.add_argument("--before", type=float, default=10.0, help="seconds of the flood before they begin")
    args = parser.parse_args()
    for server in args.servers:
        name, _, url = server.partition("=")
        alone, beside = (asyncio.run(measure(url.rstrip("/"), args, heavy)) for heavy in (0, args.open))
        usual, flooded = statistics.mean(alone), statistics.mean(beside)
        print(
            f"{name:10} alone {usual:6.2f} s, flooded {flooded:6.2f} s in the mean (longest {max(beside):.2f} s): "
            f"{flooded / usual:.2f} times",
            flush=True,
        )


if __name__ == "__main__":
    main()
