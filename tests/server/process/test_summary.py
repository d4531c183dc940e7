"""The lines that `lengthwise serve` prints once it is ready."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.network.generation_config import SamplingDefaults
from scheduler.serving_time.bilinear import Bilinear
from scheduler.serving_time.profile_file import Conditions
from server.api.served_model import AnswerDefaults
from server.http.service import Machine
from server.process.life import summarize
from tests.server.live import Live

CONDITIONS = Conditions("fake", "bfloat16", "int4", "A Processor", 2, 512)
PRICES = Bilinear(p1=0, p2=0, p3=0, p4=0, d1=0.00001, d2=0.001, d3=0, d4=0.02)
"""At 512 tokens a row adds 6.12 ms to 20: 38 tokens/s alone, 155 for 64."""


@pytest.mark.parametrize(
    ("prices", "speed"),
    [
        (PRICES, "about 38 tokens/s for one request, 155 for 64 together, as served here before"),
        (None, "not known yet; it is learned from what is served"),
    ],
)
async def test_it_tells_what_serves_and_what_to_try(live: Live, prices: Bilinear | None, speed: str) -> None:
    service = replace(live.service, machine=Machine(CONDITIONS, prices))
    assert summarize(service, "http://127.0.0.1:8000", 1.25).splitlines() == [
        "Lengthwise ready on http://127.0.0.1:8000 (fake, 1 executor, 1.2 s)",
        "  weights   bfloat16, kept as int4, on A Processor, 2 threads",
        "  room      64 slots, 1,000,000 tokens of K and V; a request may take 256",
        f"  speed     {speed}",
        "  open http://127.0.0.1:8000 or run: lengthwise chat",
    ]


@pytest.mark.parametrize(
    ("defaults", "told"),
    [
        (AnswerDefaults(SamplingDefaults()), []),
        (
            AnswerDefaults(SamplingDefaults(), max_tokens=1024),
            ["  answers   without max_tokens end after 1,024 tokens: --default-max-tokens changes that"],
        ),
        (
            AnswerDefaults(SamplingDefaults(max_new_tokens=66)),
            ["  answers   all end after 66 tokens: max_new_tokens of the model's generation config"],
        ),
    ],
)
async def test_it_tells_what_ends_an_answer_whose_request_did_not_ask(
    live: Live, defaults: AnswerDefaults, told: list[str]
) -> None:
    model = replace(live.service.model, defaults=defaults)
    service = replace(live.service, served_model=model, machine=Machine(CONDITIONS, PRICES))
    lines = summarize(service, "http://127.0.0.1:8000", 1.25).splitlines()
    assert [line for line in lines if "answers" in line] == told


async def test_another_port_is_named_to_the_chat_and_a_unix_socket_has_no_page(live: Live) -> None:
    elsewhere = summarize(live.service, "https://127.0.0.1:18000", 1.0)
    assert elsewhere.endswith("\n  open https://127.0.0.1:18000 or run: lengthwise chat --url https://127.0.0.1:18000")
    assert summarize(live.service, "unix:/run/it", 1.0) == "Lengthwise ready on unix:/run/it (fake, 1 executor, 1.0 s)"
