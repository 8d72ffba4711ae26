"""Published GRIFFIN files, which call themselves a small language model: read, written, refused."""

import json
import shutil

import jax
import numpy as np
import pytest
import torch_zip
from golden_data import SHIPPED
from safetensors.numpy import load_file, save_file

import jaxspec
from jaxspec.cli.main import main
from jaxspec.drafters.files import find_config, read_config
from jaxspec.drafters.format import About
from jaxspec.drafters.griffin import files
from jaxspec.io.files.json_files import read_json
from jaxspec.io.files.safetensors_files import WEIGHTS
from jaxspec.io.files.torch_files import TORCH_WEIGHTS
from jaxspec.io.weights.weight_map import WeightMismatch
from jaxspec.zoo.convert import convert
from jaxspec.zoo.inspect import describe_checkpoint

TARGET, DRAFT = SHIPPED / "griffin" / "target", SHIPPED / "griffin" / "draft"
HF, TENSORS = read_json(DRAFT / "config.json"), load_file(DRAFT / WEIGHTS)
EMBEDDING = load_file(TARGET / WEIGHTS)["model.embed_tokens.weight"]
WIDTH = HF["hidden_size"]


def publish(folder, tensors, **changes):
    """A folder like those of the authors: config.json and pytorch_model.bin."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(HF | changes))
    torch_zip.write_torch_zip(folder / TORCH_WEIGHTS, tensors)
    return folder


def biases():
    random = np.random.default_rng(4)
    names = [f"layers.0.self_attn.{part}_proj.bias" for part in "qkv"]
    return {name: random.normal(size=WIDTH).astype(np.float32) for name in names}


def test_a_published_folder_is_known_by_its_tensors(tmp_path):
    folder = publish(tmp_path / "x", TENSORS | {"embed_tokens.weight": EMBEDDING}, bias=True)
    params = jaxspec.load(TARGET, drafter=folder, dtype="float32")
    ((name, config),) = params.spec.drafters
    assert (name, config.depth, config.qkv_bias) == ("griffin", 6, False)
    assert config.feature_layers == (params.spec.target.num_layers,)
    written = files.tensors(params.drafter("griffin"), config)
    assert written.keys() == TENSORS.keys() and len(written) == 14
    for name, tensor in TENSORS.items():
        np.testing.assert_array_equal(written[name], tensor)
    about = describe_checkpoint(folder)
    assert about["family"] == "griffin" and about["readable"], about["problem"]


def test_a_language_model_of_one_layer_is_still_one(tmp_path):
    folder = tmp_path / "x"
    shutil.copytree(TARGET, folder)
    hf = read_json(folder / "config.json") | {"num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(hf))
    kept = {
        name: tensor
        for name, tensor in load_file(folder / WEIGHTS).items()
        if "layers." not in name or "layers.0." in name
    }
    save_file(kept, folder / WEIGHTS)
    assert jaxspec.load(TARGET, drafter=folder).spec.drafters[0][0] == "draft_model"


@pytest.mark.parametrize("stated", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_biases_of_q_k_and_v_are_there_or_not(tmp_path, stated, biased):
    """Qwen2's config.json promises them, and the authors' loaders disagree."""
    tensors = TENSORS | (biases() if biased else {})
    folder = publish(tmp_path / "x", tensors, **({"qkv_bias": True} if stated else {}))
    params = jaxspec.load(TARGET, drafter=folder, dtype="float32")
    config, weights = params.spec.drafter("griffin"), params.drafter("griffin")["params"]
    assert config.qkv_bias == biased
    found = {name for name in ("q", "kv", "o") if "bias" in weights["attention"][name]}
    assert found == ({"q", "kv"} if biased else set())
    jaxspec.save(params, tmp_path / "saved")
    again = jaxspec.load(tmp_path / "saved", dtype="float32")
    assert again.spec.drafter("griffin") == config
    jax.tree.map(np.testing.assert_array_equal, again.drafters, params.drafters)


def test_a_written_config_reads_back():
    config = files.for_target(files.config_from_hf(HF), jaxspec.load(TARGET).spec.target)
    hf = json.loads(json.dumps(files.config_to_hf(config, About(3, 256), "float32")))
    assert read_config(hf) == config and hf["max_position_embeddings"] == 256
    # The fields that the authors' code reads are as they publish them.
    for name in ("hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers"):
        assert hf[name] == HF[name]


def test_convert_writes_all_that_the_authors_loader_asks_for(tmp_path, capsys):
    command = ["convert", str(DRAFT), str(tmp_path / "x"), "--to", "griffin"]
    assert main([*command, "--target", str(TARGET)]) == 0
    stored = load_file(tmp_path / "x" / WEIGHTS)
    assert stored.keys() == TENSORS.keys() | {"embed_tokens.weight"} and len(stored) == 15
    for name, tensor in (TENSORS | {"embed_tokens.weight": EMBEDDING}).items():
        np.testing.assert_array_equal(stored[name], tensor)
    capsys.readouterr()
    assert main([*command[:2], str(tmp_path / "y"), *command[3:]]) != 0
    assert "give --target" in capsys.readouterr().err
    with pytest.raises(ValueError, match="is a griffin drafter: write it with --to griffin"):
        convert(DRAFT, tmp_path / "z", "eagle3", TARGET)


def test_packed_weights_are_found_too(tmp_path):
    packed = convert_packed(tmp_path)
    assert find_config(packed) == find_config(DRAFT)
    params = jaxspec.load(TARGET, drafter=packed, dtype="float32")
    kernel = params.drafter("griffin")["params"]["fusion"]["down"]["kernel"]
    np.testing.assert_allclose(kernel, TENSORS["fc.mlp.down_proj.weight"].T, atol=0.05)


def convert_packed(tmp_path):
    out = tmp_path / "packed"
    assert main(["convert", str(DRAFT), str(out), "--to", "packed"]) == 0
    return out


def test_a_padded_target(tmp_path):
    """Rows beyond the drafter's tokens: only the copied embeddings have an axis of them."""
    config = find_config(DRAFT)
    wider = files.FORMAT.pad(config, 208)
    folder = publish(tmp_path / "x", TENSORS | {"embed_tokens.weight": EMBEDDING})
    assert wider.vocab_size == 208 and wider.draft_vocab_size is None
    files.check(folder, wider)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2, and a GRIFFIN drafter has 1 layer"),
        ({"draft_vocab_size": 100}, "draft_vocab_size is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
    ],
)
def test_other_networks_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        files.config_from_hf(HF | changes)


def test_what_does_not_fit_is_named(tmp_path):
    target = jaxspec.load(TARGET).spec.target
    stated = files.config_from_hf(HF | {"jaxspec": {"feature_layers": [2]}})
    with pytest.raises(ValueError, match=r"reads target layers \(2,\), and GRIFFIN the final norm"):
        files.for_target(stated, target)
    with pytest.raises(ValueError, match="its hidden size is 64"):
        files.for_target(files.config_from_hf(HF | {"hidden_size": 64, "head_dim": 12}), target)
    fewer = {name: tensor for name, tensor in TENSORS.items() if name != "fc.fc.bias"}
    folder = publish(
        tmp_path / "x", fewer | {"layers.0.self_attn.o_proj.bias": TENSORS["fc.fc.bias"]}
    )
    with pytest.raises(WeightMismatch) as caught:
        jaxspec.load(TARGET, drafter=folder)
    assert caught.value.missing == ["fc.fc.bias"]
    assert caught.value.unexpected == ["layers.0.self_attn.o_proj.bias"]
