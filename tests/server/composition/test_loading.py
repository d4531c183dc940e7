"""Settings that are refused before a model is loaded, executors as they are built, and where things are kept."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from engine.forward.graphs import DecodeGraphs
from engine.kv.host_store import HostStore
from engine.lifecycle import Lifecycle
from models.network.attention import gather_attention
from models.network.loader import LoadedModel, LoadError, load
from models.network.quantization import Kernels
from models.text import Text
from server.cli.config import ServeConfig
from server.composition.cache_paths import forest_path, model_key, proxy_path
from server.composition.loading import build_executor, load_models
from tests.engine.forward.recorded import Recorder
from tests.engine.rows import device_of, finish, spec


@pytest.mark.parametrize(
    ("choice", "message"),
    [({"strategy": "baton"}, "strategy baton reads prompts in a step"), ({"recompute": True}, "--recompute reads")],
)
def test_choices_that_contradict_batch_invariance_are_refused(
    choice: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match=message):
        load_models(ServeConfig(model=str(tmp_path), batch_invariant=True, **choice))  # type: ignore[arg-type]


@pytest.mark.parametrize(("eager", "captures"), [(False, 6), (True, 0)])
def test_decode_steps_are_prepared_where_flash_attention_reads_the_arena(
    eager: bool, captures: int, tiny_folder: Path, tiny_text: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gathering attention stands in for it, and a recorder for CUDA graphs."""
    recorder = Recorder()
    monkeypatch.setattr("engine.kv.arena.has_flash", lambda *_: True)
    monkeypatch.setattr("engine.forward.graphs.DecodeGraphs", partial(DecodeGraphs, attention=gather_attention))
    monkeypatch.setattr("server.composition.loading.capture_on", recorder)
    model = load(tiny_folder, dtype="float32", kernels=Kernels.TORCH)
    config = ServeConfig(model="tiny", max_num_seqs=32, enforce_eager=eager, device="cpu")
    executor = build_executor(config, 0, model, tiny_text, HostStore(), lambda _: None)
    assert len(recorder.graphs) == captures
    lifecycle, before = executor._lifecycle, recorder.replays
    assert isinstance(lifecycle, Lifecycle)
    lifecycle.table.admit([spec(0, 9, max_tokens=5)])
    with torch.inference_mode():
        finish(lifecycle)
    assert recorder.replays - before == (0 if eager else 4)


def test_decode_steps_go_by_a_mask_elsewhere(tiny_model: LoadedModel, tiny_text: Text) -> None:
    config = ServeConfig(model="tiny", max_num_seqs=4, device="cpu")
    executor = build_executor(config, 0, tiny_model, tiny_text, HostStore(), lambda _: None)
    assert device_of(executor._lifecycle).batch._graphs is None


def test_every_model_has_a_forest_and_a_proxy_of_its_own_inside_the_folders(tmp_path: Path) -> None:
    assert forest_path(tmp_path, "smollm2-135m-instruct").name == "smollm2-135m-instruct.forest"
    assert forest_path(tmp_path, "/models/a b") == tmp_path / "forests" / "a_b.forest"
    assert proxy_path(tmp_path, "/models/a b") == tmp_path / "proxies" / "a_b"
    assert model_key("org/model") == model_key("/somewhere/model") == "model"
