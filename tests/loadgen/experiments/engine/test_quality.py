from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from loadgen.experiments.engine.quality import perplexity, table
from models.network.kv_adapter import PassingStore
from models.network.loader import LoadedModel
from server.cli.main import main


def test_perplexity_is_what_transformers_own_loss_says(tiny_model: LoadedModel) -> None:
    texts = [[5, 6, 7, 8, 9], [11, 12], [3] * 30]
    losses = []
    for text in texts:
        tokens = torch.tensor([text])
        logits = tiny_model.forward(tokens, torch.arange(len(text))[None], None, PassingStore())
        losses += [-logits[0].log_softmax(-1)[place, token].item() for place, token in enumerate(text[1:])]
    assert perplexity(tiny_model, texts) == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)


def test_each_text_is_told(tiny_model: LoadedModel) -> None:
    told: list[None] = []
    perplexity(tiny_model, [[1, 2], [3, 4]], lambda: told.append(None))
    assert len(told) == 2


def test_a_change_is_a_share_of_what_was() -> None:
    found = {"float32": (10.0, 4 * 2**20), "int8": (10.3, 2**20)}
    assert [line.split() for line in table(found).splitlines()[1:]] == [
        ["float32", "4", "10.000", "+0.00%"],
        ["int8", "1", "10.300", "+3.00%"],
    ]


@pytest.mark.parametrize("named", [True, False])
def test_the_command_compares_what_was_asked_for(
    named: bool, tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text("\n".join(json.dumps({"instruction": f"Count to {n}.", "input": "now"}) for n in range(4)))
    files = ["--dataset-path", str(texts)] if named else []
    flags = ["--quantization", "int8", "--num-texts", "3", "--max-len", "20"]
    assert main(["bench", "quality", str(tiny_folder), *flags, *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["weights", "float32", "int8"]


def test_a_file_that_is_not_there_is_told(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "quality", str(tiny_folder), "--dataset-path", "absent.jsonl"]) == 1
    assert "absent.jsonl" in capsys.readouterr().err
