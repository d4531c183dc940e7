"""Parity with a real model on real prompts: 32 rows at once, each against `generate` alone, in float32."""

import itertools
import json
from pathlib import Path

import pytest

from engine.messages import RowSpec
from engine.sampling.params import SamplingParams
from models.catalog.catalog import DEFAULT_MODEL, Catalog
from models.network.loader import load
from models.text import Text
from tests.engine.rows import lifecycle_of
from tests.reference import Reference

TASKS = Path(__file__).parents[3].parent / "shared" / "data" / "tasks"
ROWS, LONGEST, TOKENS = 32, 96, 4

pytestmark = [
    pytest.mark.skipif(not TASKS.is_dir(), reason=f"no task prompts beside the project ({TASKS.parent.name}/tasks)"),
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("all_cores"),
]


def prompts(text: Text) -> list[tuple[int, ...]]:
    """Short prompts, as many from each task."""
    chosen: list[tuple[int, ...]] = []
    for path in itertools.cycle(sorted(TASKS.glob("*.jsonl"))):
        lines = path.read_text(encoding="utf-8").splitlines()
        for line in lines[len(chosen) :: 7]:
            task = json.loads(line)
            ids = text.encode_chat([{"role": "user", "content": f"{task['instruction']}\n\n{task['input']}"}])
            if len(ids) <= LONGEST:
                chosen.append(tuple(ids))
                break
        if len(chosen) == ROWS:
            return chosen
    raise AssertionError("unreachable: the cycle is endless")


def test_32_real_prompts_at_once_each_get_the_answer_they_would_get_alone() -> None:
    folder = Catalog().resolve(DEFAULT_MODEL)
    model, text = load(folder, dtype="float32"), Text.load(folder)
    params = SamplingParams(max_tokens=TOKENS, temperature=0)
    specs = [RowSpec(row_id, prompt, params) for row_id, prompt in enumerate(prompts(text))]
    lifecycle = lifecycle_of(model, text, capacity=24 * (LONGEST + TOKENS), rows=ROWS, chunk=256)
    for first in range(0, ROWS, 5):
        lifecycle.table.admit(specs[first : first + 5])
    answers: dict[int, list[int]] = {spec.row_id: [] for spec in specs}
    while not lifecycle.table.idle:
        for update in lifecycle.turn():
            answers[update.row_id] += update.token_ids
    reference = Reference(folder)
    for spec in specs:
        assert answers[spec.row_id] == reference.generate(spec), text.decode(spec.prompt)
