"""Whatever JSON comes, the answer is an answer or says what is wrong; the server never fails."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from server.api.input.schema import ChatBody, CompletionBody
from tests.server.live import live_server

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.integers(-3, 30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = sorted({field.name for body in (ChatBody, CompletionBody) for field in msgspec.structs.fields(body)})
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "tool"]) | ANYTHING, "content": st.text() | ANYTHING}
    ),
    min_size=1,
    max_size=3,
)
PROMPT = st.text(max_size=30) | st.lists(st.integers(-1, 257), max_size=9) | st.lists(st.text(max_size=5), max_size=3)


def bodies() -> st.SearchStrategy[dict[str, Any]]:
    """Mostly right bodies with a few fields of any kind."""
    right = st.fixed_dictionaries({"messages": MESSAGES, "prompt": PROMPT}, optional={"n": st.integers(0, 3)})
    wild = st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=4)
    return st.builds(lambda one, other: one | other, right, wild)


ENDPOINTS = st.sampled_from(["/v1/chat/completions", "/v1/completions"])


def test_no_json_makes_the_server_fail() -> None:
    stack = AsyncExitStack()
    with asyncio.Runner() as runner:
        live = runner.run(stack.enter_async_context(live_server()))

        @settings(max_examples=400, deadline=None)
        @given(ENDPOINTS, bodies() | ANYTHING)
        def check(path: str, body: object) -> None:
            reply = runner.run(live.ask("POST", path, orjson.dumps(body)))
            assert reply.status in (200, 400, 404), reply
            assert reply.status == 200 or reply.json["error"]["message"]
            assert live.dispatcher.table.requests_running == 0

        check()
        runner.run(stack.aclose())
