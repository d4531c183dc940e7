"""The plain reference: one row alone through transformers' own `generate`, with transformers' own cache and attention.

Only the choice of a token, where it is not greedy, is the engine's: it is called on the reference's logits.
"""

from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from engine.messages import RowSpec
from engine.row import Choice, Row
from engine.sampling.sampler import sample
from models.text import Text


class Reference:
    """A checkpoint in float32 as transformers alone would run it."""

    def __init__(self, folder: Path) -> None:
        self._network: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._text = Text.load(folder)

    def generate(self, spec: RowSpec) -> list[int]:
        """The tokens of one row, by greedy search over logits in which the sampled token stands out."""
        config = self._network.generation_config
        assert config is not None
        ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        chooser = _Chooser(Row(spec, self._text, frozenset(ends)))
        prompt = torch.tensor([spec.prompt])
        with torch.inference_mode():
            output: Tensor = self._network.generate(  # type: ignore[operator]
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=spec.sampling.max_tokens,
                do_sample=False,
                eos_token_id=None if spec.sampling.ignore_eos else ends,
                logits_processor=LogitsProcessorList([chooser]),
            )
        tokens: list[int] = output[0, len(spec.prompt) :].tolist()
        return tokens


class _Chooser(LogitsProcessor):
    """Lets the engine's sampler choose, and makes its choice the only one that greedy search can make."""

    def __init__(self, row: Row) -> None:
        self._row = row

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        (choice,) = sample([self._row], scores.float().clone())
        assert isinstance(choice, Choice)
        self._row.accept(choice)
        only = torch.full_like(scores, -torch.inf)
        only[0, choice.token_id] = 0
        return only
