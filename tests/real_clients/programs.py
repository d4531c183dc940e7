"""Programs that people use as they are: how each is installed, told of a server and started, and what the model says,
so that a tool is used in three turns by those that have turns.

In texts, {url} is the server's address, {folder} the one that the program works in, and {model} that of the network.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tests.real_clients.scripted import Script, calls

END = "Both of them are read."
ASKED = "Read note.txt and dot.png, then go on."


@dataclass(frozen=True, slots=True)
class Program:
    """A program of others at its defaults, but for what it would send elsewhere than to the server."""

    requirements: tuple[str, ...]  # the program itself first
    command: tuple[str, ...]
    script: Script
    unusual: str  # what it sends, for the table
    sends: tuple[Mapping[str, object], ...]  # fields that `unusual` speaks of, each set in one call at least
    results: int = 3  # of tools, in the longest history
    files: Mapping[str, str] = field(default_factory=dict)  # below {folder}, which is HOME too
    environment: Mapping[str, str] = field(default_factory=dict)
    again: tuple[str, ...] = ()  # the command with which the user goes on
    beside: str | None = None  # a file beside this one that is copied to {folder}
    shows: str = END  # a part of its output

    @property
    def package(self) -> str:
        return re.split(r"[=\[]|(?<=.)@", self.requirements[0], maxsplit=1)[0]

    @property
    def is_node(self) -> bool:
        return "==" not in self.requirements[0]


def read_two(tool: str, path: str, last: str, /, **arguments: object) -> Script:
    """Read a text, then a picture, then call another tool."""
    texts = ({path: "{folder}/note.txt"}, {path: "{folder}/dot.png"})
    return calls(*((tool, one) for one in texts), (last, arguments), end=END)


WEATHER = calls(*(("weather", {"city": city}) for city in ("Graz", "Wien", "Linz")), end=END)

CODEX = """\
model = "long"
model_provider = "lengthwise"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.lengthwise]
name = "Lengthwise"
base_url = "{url}/v1"
wire_api = "responses"
"""

CLAUDE_CODE = {
    "ANTHROPIC_BASE_URL": "{url}",
    "ANTHROPIC_API_KEY": "none",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
}

OPENCODE = """\
{"model": "lengthwise/long", "autoupdate": false, "share": "disabled", "provider": {"lengthwise": {
    "npm": "@ai-sdk/openai-compatible", "options": {"baseURL": "{url}/v1", "apiKey": "none"}, "models": {"long": {}}}}}
"""

QWEN_CODE = '{"privacy": {"usageStatisticsEnabled": false}, "general": {"disableAutoUpdate": true}}'

QWEN = {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "long", "HTTPS_PROXY": ""}

CHANGED = "The note is changed."
AIDER = (
    *("aider", "--model", "openai/long", "--openai-api-base", "{url}/v1", "--openai-api-key", "none", "--yes-always"),
    *("--no-git", "--no-check-update", "--analytics-disable", "--no-show-model-warnings"),
    *("--auto-test", "--test-cmd", "sh check.sh", "--message", "Let the note say three.", "note.txt"),
)

LM_ROW = json.dumps({"question": "Which is read?", "choices": ["both", "none"], "right": 0, "said": END})
LM_TASK = """\
dataset_path: json
dataset_kwargs: {data_files: "{folder}/rows.jsonl"}
test_split: train
doc_to_text: "{{question}}"
"""
CHOSEN = 'task: chosen\noutput_type: multiple_choice\ndoc_to_choice: "{{choices}}"\ndoc_to_target: right\n'
SAID = 'task: said\noutput_type: generate_until\ndoc_to_target: "{{said}}"\n'
LM_FILES = {"rows.jsonl": f"{LM_ROW}\n" * 3, "chosen.yaml": CHOSEN + LM_TASK, "said.yaml": SAID + LM_TASK}


def lm_eval(words: tuple[str, ...], model: str, unusual: str, sends: tuple[Mapping[str, object], ...]) -> Program:
    command = ("lm_eval", "run", "--include_path", "{folder}", "--model", *words, "--model_args", model)
    given: dict[str, Any] = {"results": 0, "files": LM_FILES, "shows": "exact_match"}
    return Program(("lm-eval[api]==0.4.13", "transformers"), command, Script((END,)), unusual, sends, **given)


PROMPTFOO = """\
prompts: ["How warm is it in {{city}}?"]
providers: [{id: "openai:chat:long", config: {apiBaseUrl: "{url}/v1", apiKey: none}}]
defaultTest: {assert: [{type: contains, value: "are read"}]}
tests: [{vars: {city: Graz}}, {vars: {city: Wien}}, {vars: {city: Linz}}]
"""

PROGRAMS: Mapping[str, Program] = MappingProxyType(
    {
        "Codex": Program(
            ("@openai/codex@0.171.0",),
            ("codex", "exec", "--skip-git-repo-check", ASKED),
            calls(
                ("exec_command", {"cmd": "cat note.txt"}),
                ("view_image", {"path": "{folder}/dot.png"}),
                ("exec_command", {"cmd": "echo hello"}),
                end=END,
            ),
            "its instructions as a `developer` message, a `namespace` of tools and `web_search`, "
            "a picture as a function's result",
            ({"store": False, "include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}},),
            files={".codex/config.toml": CODEX},
            again=("codex", "exec", "resume", "--last", "--skip-git-repo-check", "Go on."),
        ),
        "Claude Code": Program(
            ("@anthropic-ai/claude-code@2.1.197",),
            ("claude", "-p", ASKED),
            read_two("Read", "file_path", "Bash", command="echo hello", description="Say hello"),
            "`max_tokens` 64,000, 24 tools, a message of role `system` behind the user's, "
            "a picture as a tool's result, `thinking: adaptive`",
            ({"max_tokens": 64_000, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},),
            environment=CLAUDE_CODE,
            again=("claude", "-c", "-p", "Go on."),
        ),
        "opencode": Program(
            ("opencode-ai@1.18.33",),
            ("opencode", "run", ASKED),
            read_two("read", "filePath", "bash", command="echo hello", description="Say hello"),
            "`max_tokens` 32,000, two calls at once, a user's turn behind a tool's result",
            ({"max_tokens": 32_000, "tool_choice": "auto", "stream_options": {"include_usage": True}},),
            files={"opencode.json": OPENCODE},
            again=("opencode", "run", "-c", "Go on."),
            environment={"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"},
        ),
        "qwen-code": Program(
            ("@qwen-code/qwen-code@0.15.10",),
            ("qwen", "--auth-type", "openai", "-p", ASKED),
            read_two("read_file", "file_path", "list_directory", path="{folder}"),
            "`max_tokens` 8,000, `content` of messages and of results in parts",
            ({"max_tokens": 8000, "stream_options": {"include_usage": True}},),
            files={".qwen/settings.json": QWEN_CODE},
            again=("qwen", "--auth-type", "openai", "-c", "-p", "Go on."),
            environment=QWEN,
        ),
        "aider": Program(
            ("aider-chat==0.86.2",),
            AIDER,
            Script(tuple(f"{CHANGED}\n\nnote.txt\n```\n{word}\n```\n" for word in ("one", "two", "three")), CHANGED),
            "`temperature` 0, turns that nobody said, the test's output twice",
            ({"temperature": 0, "stream": True},),
            results=2,
            environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            files={"check.sh": "grep -q three note.txt || { echo the note is wrong; exit 1; }"},
            shows="Applied edit to note.txt",
        ),
        "AI SDK": Program(
            ("ai@6.0.326", "@ai-sdk/openai@3.0.141", "zod@4"),
            ("node", "ai_sdk_responses_client.mjs", "{url}"),
            WEATHER,
            "`item_reference` for what was answered before",
            ({"tool_choice": "auto", "stream": True},),
            beside="ai_sdk_responses_client.mjs",
        ),
        "openai-agents": Program(
            ("openai-agents==0.24.0",),
            ("python", "openai_agents_client.py", "{url}"),
            WEATHER,
            "the answer's items as they came, with all their fields; `strict` tools",
            ({"include": [], "stream": True},),
            beside="openai_agents_client.py",
        ),
        "inspect-ai": Program(
            ("inspect-ai==0.3.285", "openai"),
            ("inspect", "eval", "inspect_ai_client.py", "--model", "openai-api/lw/long", "--display", "plain"),
            WEATHER,
            "arguments that it rewrote",
            ({"tool_choice": "auto"},),
            environment={"LW_BASE_URL": "{url}/v1", "LW_API_KEY": "none"},
            beside="inspect_ai_client.py",
            shows="accuracy  1.000",
        ),
        "lm-eval, `local-completions`": lm_eval(
            ("local-completions", "--tasks", "chosen,said"),
            "base_url={url}/v1/completions,model=long,tokenizer={model}",
            "lists of token ids in a list, `echo` with `logprobs` and `max_tokens` 1; asks for `/tokenizer_info` "
            "first, which need not be there",
            ({"max_tokens": 1, "echo": True, "logprobs": 1, "seed": 1234}, {"stop": ["\n\n", "<|im_end|>"]}),
        ),
        "lm-eval, `local-chat-completions`": lm_eval(
            ("local-chat-completions", "--tasks", "said", "--apply_chat_template"),
            "base_url={url}/v1/chat/completions,model=long",
            "nothing",
            ({"stop": ["\n\n"], "temperature": 0.0, "seed": 1234},),
        ),
        "promptfoo": Program(
            ("promptfoo@0.121.20",),
            ("promptfoo", "eval", "--no-cache", "--no-progress-bar"),
            Script((END,)),
            "nothing",
            ({"max_tokens": 1024, "temperature": 0},),
            results=0,
            files={"promptfooconfig.yaml": PROMPTFOO},
            environment={"PROMPTFOO_DISABLE_TELEMETRY": "1", "PROMPTFOO_DISABLE_UPDATE": "1"},
            shows="3 passed (100%)",
        ),
    }
)
