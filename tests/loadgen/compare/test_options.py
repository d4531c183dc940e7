"""The flags of `lengthwise compare`, read together."""

import shlex

import pytest

from loadgen.compare.record import Comparison, LoadPoint, plan as make_plan
from loadgen.options import CompareFlags
from loadgen.result_file import PROGRAM
from loadgen.turns import take_turns
from models.errors import UserError
from tests.loadgen.workload.args import options


def plan(*flags: str) -> Comparison:
    return make_plan(options(CompareFlags, *flags))


def test_strategies_and_urls_are_contestants_in_the_order_given() -> None:
    made = plan("tiny", "--strategies", "vs,baton,vs", "--urls", "vllm=http://gpu:8000")
    assert [(one.name, one.strategy, one.url) for one in made.contestants] == [
        ("vs", "vs", None),
        ("baton", "baton", None),
        ("vs (2)", "vs", None),
        ("vllm", None, "http://gpu:8000"),
    ]
    assert (made.flags.rounds, made.points) == (3, (LoadPoint(),))


def test_every_server_gets_the_same_flags_and_its_strategy() -> None:
    made = plan("tiny", "--strategies", "vs,baton", "--serve-args", "--dtype float32 --served-model-name 'a b'")
    command = shlex.split(made.contestants[1].command or "")
    assert command[: len(PROGRAM)] == [*PROGRAM]
    assert command[len(PROGRAM) : len(PROGRAM) + 2] == ["serve", "tiny"]
    assert "--allow-replay" in command and command[command.index("--port") + 1] == "0"
    assert command[-6:] == ["--dtype", "float32", "--served-model-name", "a b", "--strategy", "baton"]


def test_each_round_begins_with_the_next_contestant() -> None:
    turns = [*take_turns("vbc", 4)]
    assert "".join(name for _, name in turns) == "vbcbcvcvbvbc"
    assert [number for number, _ in turns] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_every_rate_meets_every_burstiness_but_all_at_once_knows_none() -> None:
    made = plan("--strategies", "vs,baton", "--request-rates", "4,inf,1", "--burstinesses", "1,0.5")
    paced = (LoadPoint(rate, burstiness) for burstiness in (0.5, 1) for rate in (1, 4))
    assert made.points == (*paced, LoadPoint(float("inf")))


APART = [
    (["--strategies", "vs"], "nothing to compare"),
    ([], "nothing to compare"),
    (["--strategies", "vs,fast"], "--strategies: fast is none of the strategies, which are vs, "),
    (["--strategies", "vs,baton", "--serve-args=--port=9"], "leave --port out"),
    (["--strategies", "vs,baton", "--serve-args=--api-key=s3cret"], "leave --api-key out, the comparison sets it"),
    (["--strategies", "vs,baton", "--serve-args", "'"], "No closing quotation"),
    (["--strategies", "vs", "--urls", "vs=http://a"], "the name vs is taken"),
    (["tiny", "--urls", "a=http://a,b=http://b"], "give --model"),
    (["--strategies", "vs,baton", "--burstinesses", "2"], "needs --request-rates"),
]


@pytest.mark.parametrize(("flags", "message"), APART)
def test_flags_that_do_not_go_together(flags: list[str], message: str) -> None:
    with pytest.raises(UserError, match="(?s).*" + message.replace(".", r"\.").replace("(", r"\(")):
        plan(*flags)
