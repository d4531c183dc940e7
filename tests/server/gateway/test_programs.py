"""Turns that name an earlier answer by its id find their program in a gateway, too."""

from typing import Any

import orjson
import pytest
from aiohttp import web

from scheduler.programs.program import Program
from scheduler.programs.recognizer import Recognizer
from tests.server.gateway.backends import Backend, gateway


class Responses(Backend):
    """Answers 1, 2, ... with the ids resp_1, resp_2, ... and an item msg_a1, ..."""

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_post("/v1/responses", self.respond)
        return app

    async def respond(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        count = len(self.bodies)
        whole = {"id": f"resp_{count}", "output": [{"type": "message", "id": f"msg_a{count}"}], "usage": {}}
        if not orjson.loads(self.bodies[-1]).get("stream"):
            return web.json_response(whole)
        event = orjson.dumps({"type": "response.completed", "response": whole})
        return web.Response(body=b"data: %b\n\n" % event, content_type="text/event-stream")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_turn_finds_its_program_by_the_answer_that_it_goes_on_from_and_never_another_users(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, recognize = list[Program](), Recognizer.recognize

    def record(*given: Any) -> Program:
        found.append(recognize(*given))
        return found[-1]

    monkeypatch.setattr(Recognizer, "recognize", record)
    async with gateway(Responses(waits=False)) as gate:
        for user, body in (
            ("a", {"input": "Hi."}),
            ("a", {"input": "Go on.", "previous_response_id": "resp_1"}),
            ("a", {"input": [{"type": "item_reference", "id": "msg_a2"}, {"role": "user", "content": "And?"}]}),
            ("b", {"input": "Go on.", "previous_response_id": "resp_1"}),
            ("a", {"input": "Hi, you.", "previous_response_id": "resp_9"}),
        ):
            answer = await gate.post("/v1/responses", {**body, "user": user, "stream": stream})
            assert answer.status == 200 and answer.body
    first, *others = found
    assert [one is first for one in others] == [True, True, False, False]
