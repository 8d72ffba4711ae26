"""EAGLE-3 files as exporters write them: what they leave out, rename and store in other types."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from golden_data import SHIPPED
from safetensors.numpy import load_file, save_file
from short_models import shorten

import jaxspec
from jaxspec.drafters.base import Committed, TargetHead
from jaxspec.drafters.eagle3 import files as eagle
from jaxspec.drafters.eagle3 import hf_config as eagle_config
from jaxspec.drafters.eagle3.drafter import make_eagle_drafter
from jaxspec.drafters.files import read_config
from jaxspec.io.files.json_files import read_json
from jaxspec.io.files.safetensors_files import WEIGHTS, WeightFiles
from jaxspec.io.weights.weight_map import WeightMismatch
from jaxspec.zoo.inspect import describe_checkpoint

DRAFT, TARGET = SHIPPED / "eagle3" / "draft", SHIPPED / "tiny_llama"
MINI = Path(jaxspec.__file__).parent / "zoo/mini/drafters/eagle3"
HF, TENSORS = read_json(DRAFT / "config.json"), load_file(DRAFT / WEIGHTS)
CONFIG = eagle_config.config_from_hf(HF)
VOCAB, WIDTH, COUNT = HF["vocab_size"], HF["hidden_size"], HF["draft_vocab_size"]
IDS = TENSORS["d2t"] + np.arange(COUNT)
# NVIDIA's lists tokens by how frequent they are.
ORDER = np.random.default_rng(0).permutation(COUNT)


def write(directory: Path, tensors: dict, hf: dict = HF) -> Path:
    """A drafter of these tensors; None leaves one out."""
    directory.mkdir()
    kept = {name: np.ascontiguousarray(x) for name, x in tensors.items() if x is not None}
    save_file(kept, directory / WEIGHTS)
    (directory / "config.json").write_text(json.dumps(hf))
    return directory


def same(found, wanted) -> None:
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


@pytest.fixture(scope="module")
def published():
    return eagle.read(DRAFT, CONFIG, "float32")


def by_frequency() -> dict:
    rows = TENSORS["lm_head.weight"][ORDER]
    return {"d2t": IDS[ORDER] - np.arange(COUNT), "lm_head.weight": rows}


@pytest.mark.parametrize(
    "changes",
    [
        {"t2d": None},
        {"d2t": None},
        {"d2t": TENSORS["d2t"].astype(np.int32)},
        {"d2t": TENSORS["d2t"].astype(np.int16), "t2d": None},
        {"d2t": TENSORS["d2t"].astype(np.uint32)},
        {"t2d": TENSORS["t2d"].astype(np.uint8)},
        {"t2d": TENSORS["t2d"].astype(np.int64), "d2t": None},
        {"t2d": TENSORS["t2d"].astype(np.int8), "d2t": TENSORS["d2t"].astype(np.int32)},
        by_frequency(),
        by_frequency() | {"t2d": None},
    ],
    ids=lambda changes: ",".join(
        f"{name}:{'-' if x is None else x.dtype.name}" for name, x in changes.items()
    ),
)
def test_the_map_in_other_forms(tmp_path, changes, published):
    directory = write(tmp_path / "x", TENSORS | changes)
    eagle.check(directory, CONFIG)
    same(eagle.read(directory, CONFIG, "float32"), published)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d2t": None, "t2d": None}, "missing: d2t, t2d"),
        ({"t2d": TENSORS["t2d"] * 2, "d2t": None}, "t2d must be 1 for tokens that can be drafted"),
        ({"t2d": np.r_[True, TENSORS["t2d"][1:]], "d2t": None}, "marks 161 tokens, and .* 160"),
        ({"d2t": TENSORS["d2t"].astype(np.float32)}, "d2t is float32"),
        ({"d2t": IDS, "t2d": None}, "must hold offsets, target id = i"),
        ({"d2t": np.r_[TENSORS["d2t"][:-1], IDS[0] - COUNT + 1], "t2d": None}, "0 and 159 both to"),
    ],
)
def test_a_wrong_map(tmp_path, changes, message):
    marks = TENSORS["t2d"].astype(np.uint8)
    directory = write(tmp_path / "x", TENSORS | {"t2d": marks} | changes)
    for refuse in (eagle.check, lambda *args: eagle.read(*args, "float32")):
        with pytest.raises(ValueError, match=message) as caught:
            refuse(directory, CONFIG)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: f"model.{name}",
        lambda name: name if name in ("lm_head.weight", "d2t", "t2d") else f"model.{name}",
        lambda name: name.replace("midlayer.", "layers.0."),
        lambda name: "model." + name.replace("midlayer.", "layers.0."),
        lambda name: f"eagle_module.{name}",
        lambda name: "draft_id_to_target_id" if name == "d2t" else name,
    ],
)
def test_tensors_under_other_names(tmp_path, rename, published):
    tensors = {rename(name): tensor for name, tensor in TENSORS.items()}
    layer = "midlayer" if any("midlayer" in name for name in tensors) else "layers.0"
    # Buffers and copies that nothing reads.
    tensors |= {
        rename(f"{layer}.self_attn.rotary_emb.inv_freq"): np.ones(8, np.float32),
        "verifier_norm.weight": np.ones(WIDTH, np.float32),
        "embed_tokens.weight": np.ones((VOCAB, WIDTH), np.float32),
    }
    directory = write(tmp_path / "x", tensors)
    same(eagle.read(directory, CONFIG, "float32"), published)
    assert describe_checkpoint(directory)["readable"] is True


def test_two_tensors_of_one_name_are_reported(tmp_path):
    directory = write(tmp_path / "x", TENSORS | {"model.fc.weight": TENSORS["fc.weight"]})
    with pytest.raises(WeightMismatch, match=r"unexpected: model\.fc\.weight"):
        eagle.check(directory, CONFIG)


@pytest.mark.parametrize(
    "name",
    [
        "LlamaForCausalLMEagle3",
        "Eagle3LlamaForCausalLM",
        "EagleLlamaForCausalLM",
        "Eagle3DraftModel",
        "LlamaEagle3DraftModel",
        "LlamaForCausalLM",
        None,
    ],
)
def test_architectures(tmp_path, name):
    hf = HF | {"architectures": [name]}
    hf = {k: v for k, v in hf.items() if name or k not in ("architectures", "model_type")}
    assert read_config(hf) == CONFIG
    about = describe_checkpoint(write(tmp_path / "x", TENSORS, hf))
    assert (about["family"], about["readable"]) == ("eagle3", True)


@pytest.mark.parametrize(
    "entry",
    [
        {"use_aux_hidden_state": False},
        {"use_input_layernorm_in_first_layer": False},
        {"use_last_layernorm": False},
        {"use_mtp_layernorm": True},
        {"parallel_draft_step": 4},
    ],
)
def test_nvidias_other_networks_are_refused(entry):
    own = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "parallel_draft_step": 1}
    own |= {"use_aux_hidden_state": True, "use_last_layernorm": True}
    assert read_config(HF | {"eagle_config": own}).feature_layers == (1, 3, 4)
    (name,) = entry
    with pytest.raises(ValueError, match=f"eagle_config.{name} = .* is not supported"):
        read_config(HF | {"eagle_config": own | entry})


def test_a_first_eagle_is_told_apart(tmp_path):
    fused = {"fc.weight": np.ones((WIDTH, 2 * WIDTH), np.float32)}
    directory = write(tmp_path / "x", TENSORS | fused | {"midlayer.hidden_norm.weight": None})
    with pytest.raises(ValueError, match="of an EAGLE or EAGLE-2 drafter"):
        eagle.check(directory, CONFIG)


@pytest.mark.parametrize("tied", [False, True])
def test_the_targets_projection_is_taken_where_the_file_has_none(tmp_path, tied):
    """A draft vocabulary that is the target's may be stated or not."""
    hf = HF | {"draft_vocab_size": None, "tie_word_embeddings": tied}
    left_out = {"lm_head.weight": None, "d2t": None, "t2d": None}
    directory = write(tmp_path / "x", TENSORS | left_out, hf)
    eagle.check(directory, read_config(hf))
    params = jaxspec.load(TARGET, drafter=directory, dtype="float32")
    name = "model.embed_tokens.weight" if tied else "lm_head.weight"
    head = params.drafters["eagle3"]["params"]["lm_head"]
    np.testing.assert_array_equal(head, WeightFiles(TARGET)[name].T)
    jaxspec.save(params, tmp_path / "saved")
    again = jaxspec.load(tmp_path / "saved", dtype="float32")
    same(again.drafters["eagle3"], params.drafters["eagle3"])


def test_a_projection_of_its_own_is_not_taken_from_the_target(tmp_path):
    directory = write(tmp_path / "x", TENSORS | {"lm_head.weight": None})
    with pytest.raises(WeightMismatch, match=r"missing: lm_head\.weight"):
        jaxspec.load(TARGET, drafter=directory)


def resized(width: int, **entries) -> tuple[dict, dict]:
    """Random weights and config.json of a drafter `width` wide with two heads of 24."""
    random, tensors = np.random.default_rng(width), {}
    sizes = {WIDTH: width, 2 * WIDTH: 2 * width, 3 * WIDTH: 3 * WIDTH}
    for name, tensor in TENSORS.items():
        if tensor.dtype != np.float32:
            tensors[name] = tensor
            continue
        shape = [sizes.get(n, n) for n in tensor.shape]
        if "q_proj" in name:
            shape[0] = 48
        elif "k_proj" in name or "v_proj" in name:
            shape[0] = 24
        elif "o_proj" in name:
            shape[1] = 48
        scale = 1.0 if len(shape) == 1 else 0.2
        tensors[name] = scale * (random.normal(size=shape) if len(shape) > 1 else np.ones(shape))
    tensors["embed_tokens.weight"] = random.normal(size=(VOCAB, width))
    floats = {k: x.astype(np.float32) for k, x in tensors.items() if x.dtype == np.float64}
    hf = HF | {"hidden_size": width, "target_hidden_size": WIDTH, "num_attention_heads": 2}
    hf |= {"num_key_value_heads": 1, "head_dim": 24, **entries}
    return tensors | floats, hf


@pytest.mark.parametrize("width", [40, pytest.param(96, marks=pytest.mark.thorough)])
def test_a_width_of_its_own(tmp_path, width):
    """The drafter reads its own embeddings; the text stays the target's."""
    tensors, hf = resized(width)
    directory = write(tmp_path / "x", tensors, hf)
    params = jaxspec.load(TARGET, drafter=directory, dtype="float32")
    config = params.spec.drafter("eagle3")
    assert (config.hidden_size, config.target_hidden_size) == (width, WIDTH)
    own = params.drafters["eagle3"]["draft"]["embedding"]
    np.testing.assert_array_equal(own, tensors["embed_tokens.weight"])
    prompt, limits, short = [5, 9, 100, 31], {"max_new_tokens": 12}, shorten(params)
    plain = jaxspec.decode(short, prompt, drafter="ar", **limits)
    out = jaxspec.decode(short, prompt, drafter="eagle3", budget=5, **limits)
    assert out.tokens == plain.tokens and out.stats.drafted > 0
    jaxspec.save(params, tmp_path / "saved")
    again = jaxspec.load(tmp_path / "saved", dtype="float32")
    assert again.spec.drafter("eagle3") == config
    same(again.drafters["eagle3"], params.drafters["eagle3"])


def test_a_width_of_its_own_with_tied_embeddings(tmp_path):
    tensors, hf = resized(40, draft_vocab_size=None, tie_word_embeddings=True)
    left_out = {"lm_head.weight": None, "d2t": None, "t2d": None}
    params = jaxspec.load(TARGET, drafter=write(tmp_path / "x", tensors | left_out, hf))
    head = params.drafters["eagle3"]["params"]["lm_head"]
    np.testing.assert_array_equal(head, tensors["embed_tokens.weight"].T)
    untied = write(tmp_path / "y", tensors | left_out, hf | {"tie_word_embeddings": False})
    with pytest.raises(WeightMismatch, match=r"missing: lm_head\.weight"):
        jaxspec.load(TARGET, drafter=untied)


@pytest.mark.parametrize(
    ("changes", "entries", "message"),
    [
        ({"embed_tokens.weight": None}, {}, r"missing: embed_tokens\.weight"),
        ({}, {"target_hidden_size": 80}, "made for a target of 80.*the target's 64"),
    ],
)
def test_what_does_not_fit(tmp_path, changes, entries, message):
    tensors, hf = resized(40, **entries)
    with pytest.raises(ValueError, match=message):
        jaxspec.load(TARGET, drafter=write(tmp_path / "x", tensors | changes, hf))


def test_trained_embeddings_of_the_speculators_schema(tmp_path):
    """A table that is the target's, in a drafter that says that it is its own, changes nothing."""
    names = ("architectures", "draft_vocab_size")
    hf = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": COUNT,
        "norm_before_residual": False,
        "embed_requires_grad": True,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "transformer_layer_config": {k: v for k, v in HF.items() if k not in names},
    }
    own = WeightFiles(TARGET)["model.embed_tokens.weight"]
    tensors = {name.replace("midlayer", "layers.0"): x for name, x in TENSORS.items()}
    directory = write(tmp_path / "x", tensors | {"embed_tokens.weight": own}, hf)
    params = jaxspec.load(TARGET, drafter=directory, dtype="float32")
    config, variables = params.spec.drafter("eagle3"), params.drafters["eagle3"]
    np.testing.assert_array_equal(variables["draft"]["embedding"], own)
    random, none = np.random.default_rng(0), TargetHead(None, None)
    new = Committed(
        *random.integers(0, VOCAB, (2, 1, 5)),
        random.normal(size=(1, 5, 3 * WIDTH)).astype(np.float32),
        np.array([0]),
        np.array([5]),
    )
    head = TargetHead(lambda tokens: own[tokens], None)
    states = []
    for one, borrowed in ((config, none), (dataclasses.replace(config, own_embeddings=0), head)):
        drafter = make_eagle_drafter(one)
        states.append(drafter.absorb(variables, drafter.init(1, 8, np.float32), borrowed, new))
    same(*states)


@pytest.mark.thorough
def test_minis_drafter_without_marks_drafts_as_before(tmp_path):
    directory = tmp_path / "x"
    shutil.copytree(MINI, directory)
    files = WeightFiles(directory)
    tensors = {name: files._read(name) for name in files._stored if name != "t2d"}
    save_file(tensors, directory / WEIGHTS)  # packed as before, but not in codes
    params = jaxspec.load("mini", drafter={"eagle3": directory}, dtype="float32")
    prompt = "Question: A baker sells 12 loaves for $3 each. How much does she earn?\nAnswer:"
    out = jaxspec.decode(params, prompt, drafter="eagle3", budget=8, max_new_tokens=32)
    assert round(out.stats.mean_acceptance_length, 2) == 4.43


def test_bfloat16_files_by_frequency(tmp_path):
    """Rows move with their tokens in every dtype."""
    tensors = {
        name: x.astype(ml_dtypes.bfloat16) if x.dtype == np.float32 else x
        for name, x in (TENSORS | by_frequency()).items()
    }
    variables = eagle.read(write(tmp_path / "x", tensors), CONFIG, "bfloat16")
    wanted = TENSORS["lm_head.weight"].astype(ml_dtypes.bfloat16).T
    np.testing.assert_array_equal(np.asarray(variables["params"]["lm_head"]), wanted)
