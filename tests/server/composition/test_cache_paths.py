"""Where things are kept: a name of a model, whatever it is, never leads out of the folder."""

from __future__ import annotations

from pathlib import Path

from server.composition.cache_paths import forest_path, model_key, proxy_path


def test_every_model_has_a_forest_and_a_proxy_of_its_own_inside_the_folders(tmp_path: Path) -> None:
    assert forest_path(tmp_path, "smollm2-135m-instruct").name == "smollm2-135m-instruct.forest"
    assert forest_path(tmp_path, "/models/a b") == tmp_path / "forests" / "a_b.forest"
    assert proxy_path(tmp_path, "/models/a b") == tmp_path / "proxies" / "a_b"
    assert model_key("org/model") == model_key("/somewhere/model") == "model"
