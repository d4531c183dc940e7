"""Programs that call no tools."""

from collections.abc import Mapping
from types import MappingProxyType

from tests.server.api.programs.shapes import CHATS, Item

ASKED: Item = {"role": "user", "content": "How warm is it?"}
EDIT = "The note is changed.\n\nnote.txt\n```\none\n```"
SAID: tuple[Item, ...] = tuple({"role": role, "content": "Ok."} for role in ("system", "user", "assistant", "user"))
FAILED: tuple[Item, ...] = tuple({"role": role, "content": "The test fails."} for role in ("user", "user", "assistant"))
TURNS = [[*SAID], [*SAID, {"role": "assistant", "content": EDIT}, *FAILED[1:], ASKED]]
TURNS.append([*TURNS[1], {"role": "assistant", "content": EDIT}, *FAILED, ASKED])
SCORED = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}

CALLS_WITHOUT_TOOLS: Mapping[str, tuple[str, tuple[Item, ...]]] = MappingProxyType(
    {
        "aider": (CHATS, tuple({"model": "fake", "messages": one, "stream": True, "temperature": 0} for one in TURNS)),
        "opencode's title": (
            CHATS,
            (
                {
                    "model": "fake",
                    "max_tokens": 32_000,
                    "messages": [SAID[0], ASKED, ASKED],
                    "stream": True,
                    "stream_options": {"include_usage": True},
                },
            ),
        ),
        "lm-eval, local-completions": (
            "/v1/completions",
            (
                {"model": "fake", "prompt": [[72, 105, 46]], **SCORED},
                {"model": "fake", "prompt": ["Hi.", "Ho.", "Hm.", "Ha."], **SCORED},
                {
                    "model": "fake",
                    "prompt": [[72, 105]],
                    "max_tokens": 256,
                    "temperature": 0.0,
                    "stop": ["\n\n", "<|im_end|>"],
                    "seed": 1234,
                },
            ),
        ),
        "lm-eval, local-chat-completions": (
            CHATS,
            (
                {
                    "model": "fake",
                    "messages": [ASKED],
                    "max_tokens": 256,
                    "temperature": 0.0,
                    "stop": ["\n\n"],
                    "seed": 1234,
                },
            ),
        ),
        "promptfoo": (CHATS, ({"model": "fake", "messages": [ASKED], "max_tokens": 1024, "temperature": 0},)),
    }
)
