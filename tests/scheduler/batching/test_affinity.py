"""Requests of one `prompt_cache_key` go where the last of them ran, if there is room, and wait for no executor."""

import pytest

from engine.messages import ExecutorHealth, FinishReason
from scheduler.batching import continuous
from scheduler.request import Request
from tests.scheduler import fakes
from tests.scheduler.fakes import port, token


class Stage(fakes.Stage):
    """Two executors, the second of which has a row; so whoever asks goes to the first."""

    def __init__(self, *, capacity: int = 1000) -> None:
        super().__init__(*(port(index, rows=2, capacity=capacity) for index in (0, 1)))
        first, self.stays = self.ask(), self.ask()
        self.end(first)
        assert (first.executor, self.stays.executor) == (None, 1)

    def ask(self, key: str = "", *, dispatch: bool = True) -> Request:
        request = self.submit(prompt_cache_key=key)
        if dispatch:
            self.dispatcher.dispatch()
        return request

    def end(self, request: Request) -> None:
        assert request.executor is not None
        self.report(token(request.row_id, 5, end=FinishReason.STOP), executor=request.executor)
        self.dispatcher.dispatch()


def known(key: str, *, capacity: int = 1000) -> Stage:
    """Whose second executor is the one that knows a key."""
    stage = Stage(capacity=capacity)
    blockers = stage.ask(), stage.ask()
    request = stage.ask(key)
    assert request.executor == 1
    for one in (*blockers, request):
        stage.end(one)
    return stage


def test_it_goes_where_the_last_of_its_key_ran_though_another_has_less_to_do_if_tokens_suffice() -> None:
    stage = known("a")
    assert (stage.ask("b").executor, stage.ask("a").executor) == (0, 1)
    stage = known("a", capacity=20)
    held = stage.ask(dispatch=False)
    assert stage.ask("a").executor is not None and held.executor is not None


def test_where_its_executor_has_a_fault_another_takes_it_and_keeps_it() -> None:
    stage = known("a")
    stage.dispatcher.receive(ExecutorHealth(1, "gone"))
    assert stage.ask("a").executor == 0
    stage.dispatcher.receive(ExecutorHealth(1, None))
    assert stage.ask("a").executor == 0


def test_those_that_came_together_all_run_and_none_is_passed_over() -> None:
    stage = known("a")
    asked = [stage.ask(key, dispatch=False) for key in ("a", "", "a", "", "a")]
    stage.dispatcher.dispatch()
    assert [one.executor for one in asked] == [1, 0, 0, None, None]
    stage.end(stage.stays)
    assert [one.executor for one in asked] == [1, 0, 0, 1, None]


def test_keys_that_were_not_used_for_long_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuous, "REMEMBERED", 2)
    stage = known("a")
    for key in ("b", "c"):
        stage.end(stage.ask(key))
    assert stage.ask("a").executor == 0
