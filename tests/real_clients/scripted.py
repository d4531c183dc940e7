"""A real server whose small random network has a long context and says, token by token, what a script has for a turn.

Between it and a program stands a proxy that keeps what is sent and answered.
"""

import json
import re
import shutil
import socket
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from aiohttp import web
from transformers import LlamaConfig, LlamaForCausalLM

from engine.sampling.params import Grammar, GrammarKind, SamplingParams
from models.catalog.catalog import Catalog
from scheduler.request import Request
from scheduler.submission import Submission
from server.api.input.tools import CALL_TAIL, OPEN, RESULT_OPEN, call_head
from server.composition.app import open_service
from server.http.service import Service
from tests.live_server import config_of, listening
from tests.tiny import LAYERS

CONTEXT = 2**17
TOKENIZER = "smollm2-135m-instruct"  # the model whose tokenizer and chat template the network has
RESULT = f"{RESULT_OPEN}\n"  # before each result in a prompt, but not in the words about tools


def build_long(folder: Path) -> Path:
    """A two-layer llama with a context of 131,072 tokens; its words are random, unless a script has them."""
    tokenizer = Catalog().resolve(TOKENIZER)
    vocabulary = json.loads((tokenizer / "config.json").read_text())["vocab_size"]
    torch.manual_seed(0)
    sizes = {"vocab_size": vocabulary, "hidden_size": 64, "intermediate_size": 64, "max_position_embeddings": CONTEXT}
    config = LlamaConfig(**LAYERS | sizes, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2)
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer / name, folder)
    return folder


@dataclass(frozen=True, slots=True)
class Script:
    """What the model says, by how often `mark` stands in the prompt; the last answer is for all turns after."""

    answers: tuple[str, ...]
    mark: str = RESULT

    def answer(self, prompt: str) -> str:
        """What is said to the prompt; no tool is called that the prompt does not tell of."""
        said = self.answers[min(prompt.count(self.mark), len(self.answers) - 1)]
        name = re.match(f'{OPEN}\n{{"name": ("[^"]+")', said)
        return said if name is None or f'"name":{name[1]}' in prompt else self.answers[-1]


def calls(*called: tuple[str, Mapping[str, object]], end: str) -> Script:
    """A script that calls one tool a turn, then says `end`."""
    written = (call_head(name) + json.dumps(arguments) + CALL_TAIL for name, arguments in called)
    return Script((*written, end))


Prompts = list[tuple[str, int]]  # their texts, and their lengths in tokens


def follow(service: Service, script: Script, monkeypatch: pytest.MonkeyPatch) -> Prompts:
    """Bind every answer by a grammar that only the script's text matches; returns the prompts, as they come."""
    submit, text, prompts = service.dispatcher.submit_all, service.model.text, Prompts()

    def bind(prompt: Sequence[int], sampling: SamplingParams) -> SamplingParams:
        prompts.append((text.decode(prompt, skip_special_tokens=False), len(prompt)))
        said = script.answer(prompts[-1][0])
        return replace(sampling, grammar=Grammar(GrammarKind.LARK, f"start: {json.dumps(said, ensure_ascii=False)}"))

    def submit_scripted(answers: Iterable[Submission], **since: Any) -> list[Request]:
        return submit([(prompt, bind(prompt, sampling), known) for prompt, sampling, known in answers], **since)

    monkeypatch.setattr(service.dispatcher, "submit_all", submit_scripted)
    return prompts


@dataclass(frozen=True, slots=True)
class Exchange:
    """A call of the program, and what it got."""

    method: str
    path: str
    body: bytes
    status: int
    content_type: str
    answer: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class Recorder:
    """A proxy before the server, which keeps all that goes through it."""

    url: str  # of the server
    session: aiohttp.ClientSession
    own: str = ""  # URL of the proxy
    kept: list[Exchange] = field(default_factory=list)

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
        async with self.session.request(request.method, self.url + request.path_qs, data=body, headers=headers) as got:
            reply = web.StreamResponse(status=got.status)
            reply.headers.update({name: value for name, value in got.headers.items() if name.lower() not in HOP})
            await reply.prepare(request)
            answer = b""
            async for piece in got.content.iter_any():
                answer += piece
                await reply.write(piece)
            kind = got.headers.get("Content-Type", "")
            self.kept.append(Exchange(request.method, request.path_qs, body, got.status, kind, answer))
            await reply.write_eof()
        return reply


HOP = frozenset({"host", "connection", "content-length", "transfer-encoding", "accept-encoding"})


@asynccontextmanager
async def recorded(url: str) -> AsyncIterator[Recorder]:
    """A recorder before the server at `url`."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(None)) as session:
        recorder = Recorder(url, session)
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", recorder.pass_on)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            port = socket.create_server(("127.0.0.1", 0))
            await web.SockSite(runner, port).start()
            recorder.own = f"http://127.0.0.1:{port.getsockname()[1]}"
            yield recorder
        finally:
            await runner.cleanup()


@asynccontextmanager
async def scripted_server(
    folder: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[str, Prompts]]:
    """The URL of a server that says what the script has, whatever model is asked for, and the prompts that come."""
    config = config_of(folder, max_num_seqs=8, accept_any_model=True, files_size=0)
    async with listening(open_service(config)) as (service, url):
        yield url, follow(service, script, monkeypatch)
