"""Runs in which a program starts a subagent, call for call as its real one sent them in November 2026 to a server that
says what to call; ids and texts are our own."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.server.api.programs import agents
from tests.server.api.programs.agents import Call, Item, Shape

CHILD = "0c0ffee0-0000-7000-8000-000000000002"
Calls = Sequence[tuple[str, Mapping[str, Any], Any]]  # tool, arguments, result


@dataclass(frozen=True, slots=True)
class Agent:
    headers: Mapping[str, str]
    history: Sequence[Item]
    calls: Calls
    body: Mapping[str, Any] = field(default_factory=dict)  # beside its program's


@dataclass(frozen=True, slots=True)
class Spawning:
    shape: Shape
    agents: Mapping[str, Agent]  # the one that was started by the user first
    order: Sequence[str]  # whose each call is

    def play(self) -> Iterator[tuple[str, Mapping[str, str], Item]]:
        """Name, headers and body of each."""
        shape = self.shape
        histories = {name: [*agent.history] for name, agent in self.agents.items()}
        calls = {name: iter(agent.calls) for name, agent in self.agents.items()}
        for number, name in enumerate(self.order):
            agent = self.agents[name]
            yield name, {**shape.headers, **agent.headers}, {**shape.body, **agent.body, shape.key: [*histories[name]]}
            if (made := next(calls[name], None)) is not None:
                tool, arguments, told = made
                call = Call(f"call_{number}", f"fc_{number}", tool, orjson.dumps(arguments).decode())
                histories[name] += shape.write(call, told)


CLAUDE_BILLING = "x-anthropic-billing-header: cc_version=2.1.197.378; cc_is_subagent=true;"
CLAUDE_CHILD = {
    "system": agents.claude_system(CLAUDE_BILLING, "You write code.", "You are an agent of Claude Code."),
    "thinking": {"type": "disabled"},
}
SKILLS = "These are skills: none."
DELEGATED = {"description": "Look", "prompt": "Look into it.", "subagent_type": "general-purpose"}
SAID: list[Item] = [{"type": "text", "text": "All is done."}, {"type": "text", "text": "agentId: a1"}]
ECHO = {"command": "echo hello", "description": "Say"}

CLAUDE_CODE_SPAWNING = Spawning(
    agents.CLAUDE_CODE,
    {
        "main": Agent({}, agents.CLAUDE_CODE.history, (("Agent", DELEGATED, SAID), ("Bash", ECHO, "hello"))),
        "child": Agent(
            {"x-claude-code-agent-id": "a1"},
            agents.claude_history("Look into it.", SKILLS),
            (("Bash", ECHO, "hello"), ("Agent", DELEGATED, SAID)),
            CLAUDE_CHILD,
        ),
        "grandchild": Agent(
            {"x-claude-code-agent-id": "a2", "x-claude-code-parent-agent-id": "a1"},
            agents.claude_history("Look there.", SKILLS),
            (("Bash", ECHO, "hello"),),
            CLAUDE_CHILD,
        ),
    },
    ("main", "child", "child", "grandchild", "grandchild", "child", "main", "main"),
)

CODEX_CHILD = {
    **{"session-id": agents.SESSION, "thread-id": CHILD, "x-client-request-id": CHILD},
    **{"x-codex-parent-thread-id": agents.SESSION, "x-openai-subagent": "collab_spawn"},
}


def codex_spawning(history: Sequence[Item], **arguments: object) -> Spawning:
    """`history`: the subagent's."""
    told = f'{{"agent_id":"{CHILD}","nickname":"Plato"}}'
    waited = f'{{"status":{{"{CHILD}":{{"completed":"All is done."}}}},"timed_out":false}}'
    spawn = ("spawn_agent", {"message": "Look into it.", **arguments}, told)
    wait = ("wait_agent", {"targets": [CHILD]}, waited)
    execute = ("exec_command", {"cmd": "echo hello"}, "Process exited with code 0\nOutput:\nhello\n")
    main = Agent(
        {"session-id": agents.SESSION, "thread-id": agents.SESSION}, agents.CODEX.history, (spawn, wait, execute)
    )
    both = {"main": main, "child": Agent(CODEX_CHILD, history, (execute,))}
    return Spawning(agents.CODEX, both, ("main", "main", "child", "child", "main", "main"))


OPENCODE_SAID = '<task id="ses_2" state="completed">\n<task_result>\nAll is done.\n</task_result>\n</task>'
OPENCODE_SPAWNING = Spawning(
    agents.OPENCODE,
    {
        "main": Agent(
            {},
            agents.OPENCODE.history,
            (("task", {**DELEGATED, "subagent_type": "general"}, OPENCODE_SAID), ("bash", ECHO, "hello\n")),
        ),
        "child": Agent(
            {"x-session-id": "ses_2", "x-session-affinity": "ses_2", "x-parent-session-id": "ses_1"},
            ({"role": "system", "content": "You write code."}, {"role": "user", "content": "Look into it."}),
            (("bash", ECHO, "hello\n"),),
        ),
    },
    ("main", "child", "child", "main", "main"),
)

CODEX_TASK = agents.codex_item(5, "user", "Look into it.")
SPAWNING: Mapping[str, Spawning] = {
    "Claude Code": CLAUDE_CODE_SPAWNING,
    "Codex": codex_spawning((*agents.CODEX.history[:3], CODEX_TASK)),
    # the subagent begins with what was said to the one that started it
    "Codex, forked": codex_spawning((*agents.CODEX.history, CODEX_TASK), fork_context=True),
    "opencode": OPENCODE_SPAWNING,
}
