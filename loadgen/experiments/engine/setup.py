"""Networks and pipelines to compare, loaded by a model's name. Nothing else here loads."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass, replace

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from engine.device import HEADROOM
from engine.forward.batch import RunningBatch
from engine.forward.graphs import graphs_for
from engine.kv.arena import KvArena
from engine.pipeline import Pipeline
from loadgen.experiments.engine.options import BenchedModel
from models.catalog.catalog import Catalog
from models.errors import UserError
from models.network.loader import LoadedModel, load
from models.network.quantization import Quantization
from models.text import Text

CHUNK_TOKENS = 512
"""Prompt tokens that are read between two decode steps; the server's default of --max-num-batched-tokens."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model as this project runs it."""

    name: str
    model: LoadedModel
    text: Text

    @property
    def vocab(self) -> int:
        """Token ids that prompts may be made of."""
        return min(self.text.vocab_size, self.model.vocab_size)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> str:
        return str(self.model.kv.dtype).removeprefix("torch.")

    @property
    def weights(self) -> str:
        """The way to keep weights, in the words of the tables."""
        kept = self.model.quantization
        return self.dtype if kept is Quantization.NONE else f"{self.dtype}, weights in {kept}"

    def pipeline(self, slots: int, columns: int) -> Pipeline:
        """A pipeline whose K and V hold `slots` rows of `columns` tokens, and the headroom that joining wants."""
        arena = KvArena(self.model.kv, slots * (columns + HEADROOM + 1), max_rows=slots)
        batch = RunningBatch(self.model, arena, graphs=graphs_for(self.model, arena))
        return Pipeline(self.model, self.text, batch, max_prefill_tokens=CHUNK_TOKENS)

    def require_context(self, columns: int) -> None:
        """Make sure that the model can read so many tokens; raises UserError."""
        if columns > self.model.context_length:
            raise UserError(
                f"{self.name} reads {self.model.context_length} tokens, not {columns}: ask for shorter ones"
            )


def load_subject(asked: BenchedModel) -> Subject:
    """The model that was asked for. Raises CatalogError, LoadError and TextError with the remedy."""
    hush()
    folder = Catalog().resolve(asked.model)
    device = _find_device(asked.device)
    model = load(folder, dtype=asked.dtype, device=device, quantization=asked.quantization)
    return Subject(asked.model, model, Text.load(folder))


def load_beside(subject: Subject, quantization: str) -> Subject:
    """Load a subject's model anew, its weights kept otherwise; raises LoadError."""
    kept = load(subject.model.folder, dtype=subject.dtype, device=str(subject.device), quantization=quantization)
    return replace(subject, model=kept)


def load_plain(subject: Subject) -> PreTrainedModel:
    """The checkpoint as transformers alone would run it, with its default attention."""
    network: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        subject.model.folder, dtype=subject.model.kv.dtype, local_files_only=True, use_safetensors=True
    )
    torch.nn.Module.to(network, subject.device)
    torch.nn.Module.eval(network).requires_grad_(False)
    return network


def describe_machine(device: torch.device) -> dict[str, object]:
    """The device and the versions on which figures depend."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def _find_device(name: str) -> str:
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise UserError("--device cuda, but no CUDA device is visible: check the driver and CUDA_VISIBLE_DEVICES")
    return "cuda:0" if there and name != "cpu" else "cpu"


def hush() -> None:
    """Keep transformers from writing between the lines of a table."""
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    if not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
