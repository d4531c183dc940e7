"""In bfloat16 answers may differ where two tokens are nearly as likely; the logits must not, beyond rounding."""

from pathlib import Path
from statistics import mean

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.forward.batch import RunningBatch
from engine.kv.arena import KvArena
from engine.row import Choice
from models.network.attention import reads_whole_pitch
from models.network.loader import load
from models.text import Text
from tests.engine.rows import default_folder, read, spec


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("longest", [40, 140])
def test_teacher_forced_logits_beside_neighbours_are_as_near_to_the_truth_as_transformers_alone(
    tiny_folder: Path, tiny_text: Text, dtype: torch.dtype, longest: int
) -> None:
    """Rows are fed the same tokens either way, whatever their logits say, so that errors cannot hide in the choice. The
    truth is what transformers computes in float64."""
    model = load(tiny_folder, dtype=str(dtype).removeprefix("torch."))
    theirs = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=dtype)
    truth = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float64)
    specs = [spec(row_id, length) for row_id, length in enumerate((longest, 7, 19))]
    forced = [[(11 * row_id + 5 * step) % 300 for step in range(12)] for row_id in range(3)]
    batch = RunningBatch(model, KvArena(model.kv, 600, max_rows=3))
    errors: list[tuple[float, float]] = []
    with torch.inference_mode():
        for one in specs:
            done = read(model, tiny_text, [one], chunk=16)[one.row_id]
            done.row.accept(Choice(forced[one.row_id][0]))
            batch.insert(done.row, done.kv)
        for step in range(1, 12):
            logits = batch.step()
            assert reads_whole_pitch(3, batch.arena.pitch) or longest == 40, "many cells are read by another kernel"
            for place, row in enumerate(list(batch.rows)):
                tokens = torch.tensor([[*row.prompt, *forced[row.row_id][:step]]])
                exact = truth(input_ids=tokens).logits[0, -1]
                found = logits[place], theirs(input_ids=tokens).logits[0, -1]
                ours, plain = (float((one - exact).norm() / exact.norm()) for one in found)
                errors.append((ours, plain))
                row.accept(Choice(forced[row.row_id][step]))
    ours, plain = (mean(error[place] for error in errors) for place in (0, 1))
    assert ours < 1.3 * plain < (0.05 if dtype is torch.bfloat16 else 1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("all_cores")
def test_the_default_model_begins_the_answer_to_the_readme_as_in_float32() -> None:
    """Its two likeliest tokens are 0.1 apart, less than a step of bfloat16 at their size."""
    folder = default_folder()
    model, text = load(folder, dtype="bfloat16"), Text.load(folder)
    tokens = text.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    with torch.inference_mode():
        logits = model.network.read(torch.tensor([tokens]))[0, -1]
    assert text.token_text(int(logits.argmax())) == "The"
