"""Programs that call no tools."""

from collections.abc import Mapping

from tests.server.api.programs.agents import STREAMED, Item
from tests.server.live import CHAT

ASKED: Item = {"role": "user", "content": "How warm is it?"}
EDIT = "The note is changed.\n\nnote.txt\n```\none\n```"
SAID: tuple[Item, ...] = tuple({"role": role, "content": "Ok."} for role in ("system", "user", "assistant", "user"))
FAILED: tuple[Item, ...] = tuple({"role": role, "content": "The test fails."} for role in ("user", "user", "assistant"))
TURNS = [[*SAID], [*SAID, {"role": "assistant", "content": EDIT}, *FAILED[1:], ASKED]]
TURNS.append([*TURNS[1], {"role": "assistant", "content": EDIT}, *FAILED, ASKED])
TITLE = {"model": "fake", "max_tokens": 32_000, "messages": [SAID[0], ASKED, ASKED], **STREAMED}
SCORED = {"model": "fake", "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
GENERATED = {"model": "fake", "temperature": 0.0, "max_tokens": 256, "seed": 1234}

CALLS_WITHOUT_TOOLS: Mapping[str, tuple[str, tuple[Item, ...]]] = {
    "aider": (CHAT, tuple({"model": "fake", "messages": one, "stream": True, "temperature": 0} for one in TURNS)),
    "opencode's title": (CHAT, (TITLE,)),
    "lm-eval, local-completions": (
        "/v1/completions",
        (
            {**SCORED, "prompt": [[72, 105, 46]]},
            {**SCORED, "prompt": ["Hi.", "Ho.", "Hm.", "Ha."]},
            {**GENERATED, "prompt": [[72, 105]], "stop": ["\n\n", "<|im_end|>"]},
        ),
    ),
    "lm-eval, local-chat-completions": (CHAT, ({**GENERATED, "messages": [ASKED], "stop": ["\n\n"]},)),
    "promptfoo": (CHAT, ({"model": "fake", "messages": [ASKED], "max_tokens": 1024, "temperature": 0},)),
}
