"""Reports come to whoever listens, on the event loop, and trouble nobody when no one does."""

import asyncio
import threading

from engine.messages import ExecutorDied, Report
from server.composition.app import Relay


def test_reports_are_heard_on_the_loop_by_the_listener_of_the_time() -> None:
    first, second = list[Report](), list[Report]()
    threads = set[int]()

    def hear(report: Report) -> None:
        first.append(report)
        threads.add(threading.get_ident())

    async def play() -> Relay:
        relay = Relay(asyncio.get_running_loop())
        for number, listener in enumerate((hear, second.append)):
            with relay.send_to(listener):
                await asyncio.to_thread(relay.deliver, ExecutorDied(number, "told"))
        await asyncio.to_thread(relay.deliver, ExecutorDied(2, "told to nobody"))
        return relay

    relay = asyncio.run(play())
    relay.deliver(ExecutorDied(3, "after the end"))
    assert (first, second) == ([ExecutorDied(0, "told")], [ExecutorDied(1, "told")])
    assert threads == {threading.get_ident()}
