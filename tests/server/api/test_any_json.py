"""Whatever JSON comes, the answer is an answer or says what is wrong; the server never fails."""

import asyncio
from contextlib import AsyncExitStack

import msgspec
import orjson
from hypothesis import given, settings, strategies as st

from server.api.input.schema import ChatBody, CompletionBody
from tests.server.live import live_server

NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.integers(-3, 30) | st.floats(allow_nan=False, allow_infinity=False)
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = sorted({field.name for body in (ChatBody, CompletionBody) for field in msgspec.structs.fields(body)})
ROLES = st.sampled_from(["user", "system", "tool"])
TURNS = st.fixed_dictionaries({"role": ROLES | ANYTHING, "content": st.text() | ANYTHING})
MESSAGES = st.lists(TURNS, min_size=1, max_size=3)
PROMPT = st.text(max_size=30) | st.lists(st.integers(-1, 257), max_size=9) | st.lists(st.text(max_size=5), max_size=3)


# Mostly right bodies with a few fields of any kind.
RIGHT = st.fixed_dictionaries({"messages": MESSAGES, "prompt": PROMPT}, optional={"n": st.integers(0, 3)})
WILD = st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=4)
BODIES = st.builds(lambda one, other: one | other, RIGHT, WILD) | ANYTHING


ENDPOINTS = st.sampled_from(["/v1/chat/completions", "/v1/completions"])


def test_no_json_makes_the_server_fail() -> None:
    stack = AsyncExitStack()
    with asyncio.Runner() as runner:
        live = runner.run(stack.enter_async_context(live_server()))

        @settings(max_examples=400, deadline=None)
        @given(ENDPOINTS, BODIES)
        def check(path: str, body: object) -> None:
            reply = runner.run(live.ask("POST", path, orjson.dumps(body)))
            assert reply.status in (200, 400, 404), reply
            assert reply.status == 200 or reply.json["error"]["message"]
            assert live.dispatcher.table.requests_running == 0

        check()
        runner.run(stack.aclose())
