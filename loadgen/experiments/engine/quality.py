"""`lengthwise bench quality`: perplexity with quantized weights."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import torch
import torch.nn.functional as F

from loadgen.console import table_console
from loadgen.experiments.engine.setup import weight_bytes
from loadgen.experiments.options import KINDS, QualityBench
from loadgen.workload.sample import Sample, read_jsonl
from loadgen.workload.tasks import read_material, samples
from models.catalog.catalog import Catalog
from models.errors import UserError
from models.network.kv_store import PassingStore
from models.network.loader import LoadedModel, load
from models.network.quantization import Quantization
from models.progress import Bars
from models.text import Text
from server.composition.devices import hush_transformers

SHORTEST = 2  # tokens of a text with one to predict
MODULES = 12  # of the standard library, read where no file is named
MIB = 2**20


def run_quality(asked: QualityBench) -> None:
    """Raises UserError."""
    hush_transformers()
    folder = Catalog().resolve(asked.model)
    texts = _encode_texts(asked, Text.load(folder))
    found = {}
    with Bars() as bars:
        for kind in (Quantization.NONE.value, *(asked.quantization or KINDS)):
            name = "float32" if kind == Quantization.NONE else kind
            bars.begin(name, len(texts))
            model = load(folder, dtype="float32", quantization=kind)
            found[name] = perplexity(model, texts, bars.advance), weight_bytes(model.network)
    table_console().print(table(found))


def _encode_texts(asked: QualityBench, text: Text) -> list[list[int]]:
    whole = ("\n".join(filter(None, (one.instruction, one.input, one.reference))) for one in _find_samples(asked))
    found = [tokens for one in whole if len(tokens := text.encode(one)[: asked.max_len]) >= SHORTEST]
    if not found:
        raise UserError("the texts have no two tokens")
    return found


def _find_samples(asked: QualityBench) -> list[Sample]:
    rng = random.Random(asked.seed)
    if not asked.dataset_path:
        return list(islice(samples(read_material(rng, MODULES), rng), asked.num_texts))
    share = -(-asked.num_texts // len(asked.dataset_path))
    files = [read_jsonl(path, need_reference=False) for path in asked.dataset_path]
    return [one for rows in files for one in rng.sample(rows, min(share, len(rows)))]


def perplexity(model: LoadedModel, texts: Sequence[Sequence[int]], watch: Callable[[], None] = lambda: None) -> float:
    """exp of the mean negative log-likelihood of all tokens but a text's first."""
    total, count = 0.0, 0
    for text in texts:
        total += _surprise(model, text)
        count += len(text) - 1
        watch()
    return math.exp(total / count)


@torch.inference_mode()
def _surprise(model: LoadedModel, text: Sequence[int]) -> float:
    """Sum of -log p(token | those before) over a text's tokens but the first."""
    tokens = torch.tensor([text], device=model.device)
    places = torch.arange(len(text), device=model.device)[None]
    logits = model.forward(tokens, places, None, PassingStore())[0, :-1]
    return F.cross_entropy(logits, tokens[0, 1:], reduction="sum").item()


def table(found: Mapping[str, tuple[float, int]]) -> str:
    """Perplexity and bytes read by a decode step, beside the first."""
    plain, _ = next(iter(found.values()))
    lines = [f"{'weights':10} {'MiB a step':>10} {'perplexity':>10} {'change':>8}"]
    for name, (value, size) in found.items():
        lines.append(f"{name:10} {size / MIB:10.0f} {value:10.3f} {(value / plain - 1) * 100:+7.2f}%")
    return "\n".join(lines)
