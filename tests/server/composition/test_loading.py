"""Settings that are refused before a model is loaded, executors as they are built, and where things are kept."""

import json
import re
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from engine.forward.graphs import DecodeGraphs
from engine.kv.host_store import HostStore
from engine.lifecycle import Lifecycle
from engine.sampling.params import Grammar, GrammarKind
from models.errors import LoadError
from models.native.library import find_library
from models.network.attention import gather_attention
from models.network.loader import LoadedModel, load
from models.network.quantization import Kernels
from models.text import Text
from server.cache_paths import forest_path, model_key, proxy_path
from server.composition.loading import build_executor, chat_template, load_models
from server.config import ConfigError, ServeConfig
from tests import tiny
from tests.engine.forward.recorded import Recorder
from tests.engine.rows import device_of, finish, lifecycle_of, spec, tokens_of
from tests.engine.sampling.grammars import SCHEMAS, check_answer, schema


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
    lifecycle, before = executor.lifecycle, recorder.replays
    assert isinstance(lifecycle, Lifecycle)
    lifecycle.table.admit([spec(0, 9, max_tokens=5)])
    with torch.inference_mode():
        finish(lifecycle)
    assert recorder.replays - before == (0 if eager else 4)


@pytest.mark.parametrize(("raw", "reason"), [(None, "No such file"), (b"\xff", "it is not UTF-8")])
def test_an_unreadable_chat_template_is_a_setting_s_fault(raw: bytes | None, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    if raw is not None:
        file.write_bytes(raw)
    with pytest.raises(ConfigError, match=f"--chat-template {file} cannot be read: {reason}"):
        chat_template(ServeConfig(chat_template=file))


@pytest.mark.parametrize(
    ("choice", "found"),
    [({"kernels": "torch"}, "lengthwise on torch"), ({"strategy": "baton"}, "baton on compiled"), ({}, None)],
)
def test_batch_invariance_needs_compiled_kernels(choice: dict[str, Any], found: str | None, tiny_folder: Path) -> None:
    if find_library() is None:
        pytest.skip("nothing was compiled for this CPU: no C++ compiler")
    config = ServeConfig(model=str(tiny_folder), device="cpu", dtype="float32", batch_invariant=True, **choice)
    with pytest.raises(LoadError, match=f"needs compiled kernels .*; this is {found}") if found else nullcontext():
        load_models(config)


def resized(folder: Path, more: int) -> Path:
    """The tiny model with so many tokens more in its network than its tokenizer knows; below 0, one that has `<think>`
    beyond the network."""
    tiny.build(folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text("utf-8"))
    size = len(tokenizer["model"]["vocab"])
    if more > 0:
        network = LlamaForCausalLM.from_pretrained(folder)
        network.resize_token_embeddings(size + more, mean_resizing=False)
        with torch.no_grad():
            network.lm_head.weight[size:] *= 100  # the likeliest by far, wherever they are not barred
        network.save_pretrained(folder)
    else:
        flags = {key: False for key in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        tokenizer["added_tokens"].append({"id": size, "content": "<think>"} | flags)
        path.write_text(json.dumps(tokenizer), "utf-8")
    return folder


@pytest.mark.parametrize("kernels", ["native", "torch"])
@pytest.mark.parametrize("more", [40, -1])
def test_tokens_that_only_the_network_or_only_the_tokenizer_has_are_never_chosen(
    tmp_path: Path, more: int, kernels: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The ones had no text; the others were read from memory beside the embeddings, and no schema could be compiled."""
    if kernels == "native" and find_library() is None:
        pytest.skip("nothing was compiled for this CPU: no C++ compiler")
    config = ServeConfig(model=str(resized(tmp_path, more)), device="cpu", dtype="float32", kernels=kernels)
    (model,), text = load_models(config)
    assert model.vocab_size == min(text.vocab_size, len(model.network.embeddings))
    assert ("('<think>') on: texts with them are refused" in caplog.text) is (more < 0)
    lifecycle = lifecycle_of(model, text)
    free = [spec(row_id, 9, max_tokens=20, temperature=1.5 * row_id, logprobs=5) for row_id in range(2)]
    chosen = schema(SCHEMAS["enum"])
    lifecycle.table.admit([*free, spec(2, 9, max_tokens=200, grammar=chosen, ignore_eos=False)])
    updates = finish(lifecycle)
    assert all(token < model.vocab_size for tokens in tokens_of(updates).values() for token in tokens)
    assert all(token < model.vocab_size for one in updates for line in one.logprobs for token, _ in line.top)
    check_answer("".join(one.text for one in updates if one.row_id == 2), chosen)


def test_ends_of_tokenizer_and_template_end_answers_and_are_barred_and_ignored_as_the_networks(tmp_path: Path) -> None:
    """A fine-tune that changed the tokenizer alone wrote the user's next turn."""
    folder = tiny.build(tmp_path)
    for name in ("config.json", "generation_config.json"):
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | {"eos_token_id": tiny.PAD_ID}))
    (model,), text = load_models(ServeConfig(model=str(folder), device="cpu", dtype="float32"))
    assert model.end_token_ids == {tiny.PAD_ID, tiny.END_ID}
    asked: dict[str, Any] = {"temperature": 0.0, "logit_bias": ((tiny.END_ID, 100.0),), "ignore_eos": False}
    lifecycle = lifecycle_of(model, text)
    long, ignoring = spec(1, **asked, min_tokens=4), spec(2, **asked | {"ignore_eos": True})
    bound = spec(3, **asked, grammar=Grammar(GrammarKind.REGEX, "[a-c]{3}"))
    lifecycle.table.admit([spec(0, **asked), long, ignoring, bound])
    found = tokens_of(finish(lifecycle))
    assert found[0] == [tiny.END_ID] and found[2] == [tiny.END_ID] * 8
    assert tiny.END_ID not in found[1][:4] and found[1][4:] == [tiny.END_ID]
    assert re.fullmatch("[a-c]{3}", text.decode(found[3]))


def test_decode_steps_go_by_a_mask_elsewhere(tiny_model: LoadedModel, tiny_text: Text) -> None:
    config = ServeConfig(model="tiny", max_num_seqs=4, device="cpu")
    executor = build_executor(config, 0, tiny_model, tiny_text, HostStore(), lambda _: None)
    assert device_of(executor.lifecycle).batch.graphs is None


def test_every_model_has_a_forest_and_a_proxy_of_its_own_inside_the_folders(tmp_path: Path) -> None:
    assert forest_path(tmp_path, "smollm2-135m-instruct").name == "smollm2-135m-instruct.forest"
    assert forest_path(tmp_path, "/models/a b") == tmp_path / "forests" / "a_b.forest"
    assert proxy_path(tmp_path, "/models/a b") == tmp_path / "proxies" / "a_b"
    assert model_key("org/model") == model_key("/somewhere/model") == "model"
