"""Models of text and images: their text part is read, by its own config and names."""

from __future__ import annotations

import json
import logging
import shutil

import jax
import numpy as np
import pytest
from golden_data import SHIPPED

import jaxspec
from jaxspec.io.files.safetensors_files import WeightFiles, write_safetensors

SOURCE = SHIPPED / "targets" / "gemma3"


@pytest.mark.parametrize(
    ("text", "head"),
    [
        ("model.language_model.", "lm_head."),
        ("language_model.model.", "language_model.lm_head."),
    ],
)
def test_the_text_part_is_the_model(text, head, tmp_path, caplog):
    hf = json.loads((SOURCE / "config.json").read_text())
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    del hf["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(outer | {"text_config": hf}))
    shutil.copy(SOURCE / "generation_config.json", tmp_path)
    read = WeightFiles(SOURCE)
    renamed = {
        name.replace("model.", text, 1).replace("lm_head.", head, 1): np.asarray(read[name])
        for name in read
    }
    others = {"vision_tower.x.weight": np.zeros((2, 2), np.float32)}
    write_safetensors(tmp_path / "model.safetensors", renamed | others)
    with caplog.at_level(logging.WARNING):
        params = jaxspec.load(str(tmp_path), dtype="float32")
    assert "1 tensors beside the text model are not used" in caplog.text
    same = jaxspec.load(str(SOURCE), dtype="float32")
    assert params.spec.target == same.spec.target
    jax.tree.map(np.testing.assert_array_equal, params.target, same.target)


@pytest.mark.parametrize("prefix", ["model.", "model.language_model."])
def test_a_draft_head_of_the_model_is_left_out(prefix, tmp_path, caplog):
    """Of Qwen3.5, as published and as transformers writes it."""
    source = SHIPPED / "targets" / "qwen3_5"
    hf = json.loads((source / "config.json").read_text())
    if prefix != "model.":
        outer = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5"}
        del hf["architectures"]
        hf = outer | {"text_config": hf}
    (tmp_path / "config.json").write_text(json.dumps(hf))
    read = WeightFiles(source)
    stored = {name.replace("model.", prefix, 1): np.asarray(read[name]) for name in read}
    head = {f"mtp.{name}.weight": np.zeros((2, 2), np.float32) for name in ("fc", "layers.0.x")}
    write_safetensors(tmp_path / "model.safetensors", stored | head)
    with caplog.at_level(logging.WARNING):
        params = jaxspec.load(str(tmp_path), dtype="float32")
    assert caplog.text.count("2 tensors of the model's own draft head (mtp.*) are not used") == 1
    assert "beside the text model" not in caplog.text
    same = jaxspec.load(str(source), dtype="float32")
    assert params.spec.target == same.spec.target
    jax.tree.map(np.testing.assert_array_equal, params.target, same.target)
