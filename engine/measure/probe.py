"""Self-test before serving: is the network the same through the arena as without? Some ignore the engine's
positions, masks or caches.
"""

import torch

from engine.forward.batch import RunningBatch
from engine.forward.graphs import capture_nothing, graphs_for
from engine.forward.prefill import Prefill
from engine.kv.arena import KvArena
from engine.messages import RowSpec
from engine.row import Choice, Row
from engine.sampling.params import SamplingParams
from models.errors import LoadError
from models.network.loader import LoadedModel
from models.text import Text

PROMPT = tuple(range(10, 22))
TOLERANCE = 0.05  # of logits: above bfloat16's rounding, below a wrong mask's


@torch.inference_mode()
def probe(model: LoadedModel, text: Text) -> None:
    name = type(model.network).__name__
    try:
        errors = _errors(model, text)
    except Exception as error:
        raise LoadError(f"{name} does not run on this server's cache, so it is not supported: {error}") from error
    if not all(error < TOLERANCE for error in errors):
        raise LoadError(
            f"{name} does not compute the same through this server's cache as without it "
            f"(relative error {max(errors):.2g}): this architecture is not supported"
        )


def _errors(model: LoadedModel, text: Text) -> list[float]:
    sampling = SamplingParams(max_tokens=8, ignore_eos=True)
    specs = (RowSpec(row_id, PROMPT[4 * row_id :], sampling) for row_id in range(3))  # ragged, so that masks matter
    rows = [Row(spec, text, frozenset()) for spec in specs]
    read = Prefill(model, rows).finish(max_tokens=len(rows) * 8)
    arena = KvArena(model.kv, 128 * len(read), max_rows=len(read))
    batch = RunningBatch(model, arena, graphs=graphs_for(model, arena, capture_nothing))
    for done in read:
        done.row.accept(Choice(int(done.logits.argmax())))
        batch.insert(done.row, done.kv, lasting=False)
    texts = (torch.tensor([done.row.tokens], device=model.device) for done in read)
    expected = torch.stack([model.network.read(text)[0, -1] for text in texts])
    errors: list[float] = ((batch.step() - expected).norm(dim=-1) / expected.norm(dim=-1)).tolist()
    return errors
