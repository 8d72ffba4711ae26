"""DeepSpec's layout and the speculators schema: what is read, written and refused."""

import dataclasses
import json
import math
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from golden_data import SHIPPED
from safetensors.numpy import load_file, save_file

import jaxspec
from jaxspec.bench.architectures import ARCHITECTURES, abstract_params, architecture, swap_drafter
from jaxspec.core.params import Spec
from jaxspec.drafters.dspark.files import FORMAT, dspark_leaves, read_config
from jaxspec.drafters.dspark.hf_config import OWN_ARCHITECTURE
from jaxspec.drafters.dspark.network import HEADS
from jaxspec.drafters.dspark.shapes import init_variables, published_config
from jaxspec.drafters.files import read_config as read_any_config
from jaxspec.drafters.registry import record_of
from jaxspec.io.files.safetensors_files import WEIGHTS
from jaxspec.io.weights.weight_map import WeightMismatch
from jaxspec.zoo.convert import convert
from jaxspec.zoo.doctor import diagnose
from jaxspec.zoo.inspect import describe_checkpoint, render_description
from jaxspec.zoo.pack import pack_checkpoint
from jaxspec.zoo.save import save

GOLDEN = SHIPPED / "dspark"
TARGET = GOLDEN / "target"
KINDS = (*HEADS, "dflash")
PUBLISHED = {
    "architectures": ["Qwen3DSparkModel"], "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 5,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000, "rope_scaling": None, "vocab_size": 151936,
    "layer_types": ["full_attention"] * 5, "sliding_window": None, "use_sliding_window": False,
    "tie_word_embeddings": False, "max_position_embeddings": 40960, "num_target_layers": 36, "block_size": 7,
    "mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33], "num_anchors": 512, "markov_rank": 256,
    "markov_head_type": "vanilla", "enable_confidence_head": True, "confidence_head_with_markov": True,
}  # fmt: skip


def directory_of(kind):
    return GOLDEN / f"draft_{kind}"


def config_json(directory):
    return json.loads((directory / "config.json").read_text())


def drafter(directory):
    config = read_config(config_json(directory))
    return config, FORMAT.stored(directory, config)


def edited(kind, destination, **entries):
    """A copy of a golden drafter with other entries in config.json; None removes one."""
    shutil.copytree(directory_of(kind), destination)
    hf = {k: v for k, v in (config_json(destination) | entries).items() if v is not None}
    (destination / "config.json").write_text(json.dumps(hf))
    return destination


def test_a_published_config():
    config = read_any_config(PUBLISHED)
    published = published_config(ARCHITECTURES["qwen3-8b"], (1, 9, 17, 25, 33))
    assert config == dataclasses.replace(published, mask_token_id=151669)
    assert config.depth == 7 and record_of(config).name == "dspark"


def test_names_and_shapes_of_a_published_checkpoint():
    """The sizes are the specification's own: 3 + 11 n tensors of the backbone, and the heads'."""
    target, config = ARCHITECTURES["qwen3-8b"], read_any_config(PUBLISHED)
    leaves = dspark_leaves(config)
    stored = {name: shape for leaf in leaves for name, _, _, shape in leaf.parts()}
    assert len(stored) == 3 + 11 * 5 + 2 + 2
    width, vocab, rank = target.hidden_size, target.vocab_size, 256
    assert stored["fc.weight"] == (width, 5 * width)
    assert stored["markov_head.markov_w1.weight"] == (vocab, rank)
    assert stored["markov_head.markov_w2.weight"] == (vocab, rank)
    assert stored["confidence_head.proj.weight"] == (1, width + rank)
    assert stored["confidence_head.proj.bias"] == (1,)
    gated = dspark_leaves(dataclasses.replace(config, markov_head="gated"))
    rnn = dspark_leaves(dataclasses.replace(config, markov_head="rnn"))
    shapes = {name: shape for leaf in [*gated, *rnn] for name, _, _, shape in leaf.parts()}
    assert shapes["markov_head.gate_proj.weight"] == (rank, width + rank)
    assert shapes["markov_head.gate_proj.bias"] == (rank,)
    assert shapes["markov_head.joint_proj.weight"] == (3 * rank, 2 * rank + width)
    assert shapes["markov_head.joint_proj.bias"] == (3 * rank,)
    # The network itself has parameters of the shapes that the table promises.
    spec = Spec(target, (("dspark", config),))
    found = flatten_dict(abstract_params(spec).drafters["dspark"]["params"])
    assert {path: leaf.shape for path, leaf in found.items()} == {
        leaf.path: leaf.array_shape() for leaf in leaves
    }
    heads = sum(math.prod(leaf.shape) for path, leaf in found.items() if path[0] != "backbone")
    assert heads == 2 * vocab * rank + width + rank + 1


def test_every_architecture_has_one():
    for name in ("qwen3-4b", "qwen3-14b", "mini"):
        spec = swap_drafter(architecture(name), "dspark")
        config = spec.drafter("dspark")
        assert (
            config.depth == 7
            and config.feature_layers == architecture(name).drafters[0][1].feature_layers
        )
    assert swap_drafter(architecture("qwen3-14b"), "dspark").drafter("dspark").feature_layers == (
        1,
        10,
        19,
        28,
        37,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["dspark", "speculators"])
def test_read_write_read_is_tensor_equal(tmp_path, kind, form):
    config, tensors = drafter(directory_of(kind))
    first = convert(directory_of(kind), tmp_path / "first", form, TARGET)
    second = convert(first, tmp_path / "second", "dspark")
    for directory in (first, second):
        found, stored = drafter(directory)
        assert found == config and set(stored) == set(tensors)
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(stored[name], tensor)
        written, target = load_file(directory / WEIGHTS), load_file(TARGET / WEIGHTS)
        np.testing.assert_array_equal(written["lm_head.weight"], target["lm_head.weight"])
        np.testing.assert_array_equal(
            written["embed_tokens.weight"], target["model.embed_tokens.weight"]
        )
    hf = config_json(second)
    theirs = config_json(directory_of(kind))
    for name in ("architectures", "block_size", "mask_token_id", "target_layer_ids", "markov_rank"):
        assert hf[name] == theirs[name]


def test_the_speculators_schema_always_says_which_slots_propose(tmp_path):
    hf = config_json(convert(directory_of("gated"), tmp_path / "out", "speculators", TARGET))
    assert hf["speculators_model_type"] == hf["speculators_config"]["algorithm"] == "dspark"
    assert hf["sample_from_anchor"] is True and hf["architectures"] == ["DSparkSpeculator"]
    assert hf["aux_hidden_state_layer_ids"] == [1, 2, 4]
    (method,) = hf["speculators_config"]["proposal_methods"]
    assert method["speculative_tokens"] == hf["block_size"] == 5
    assert (hf["markov_head_type"], hf["confidence_head_with_markov"]) == ("gated", False)
    without = {name: value for name, value in hf.items() if name != "sample_from_anchor"}
    with pytest.raises(ValueError, match="lacks 'sample_from_anchor', and readers disagree"):
        read_config(without)
    assert read_config(hf | {"sample_from_anchor": False}).depth == 4


def test_what_the_schema_assumes():
    layer = {
        name: PUBLISHED[name] for name in PUBLISHED if name not in ("architectures", "markov_rank")
    }
    hf = {
        "speculators_model_type": "dspark", "transformer_layer_config": layer, "block_size": 7, "mask_token_id": 151669,
        "aux_hidden_state_layer_ids": [2, 10, 18, 26, 34], "sample_from_anchor": True,
    }  # fmt: skip
    assert read_config(hf) == read_any_config(PUBLISHED)
    embeddings = read_config(hf | {"aux_hidden_state_layer_ids": [0, 10]})
    assert embeddings.feature_layers == (-1, 9)


VARIANTS = {
    "deepspec": {},
    "without a head": {"markov_rank": 0, "confidence": False, "confidence_with_markov": False},
    "slots of DFlash": {"sample_from_anchor": False},
    "causal": {"sample_from_anchor": False, "causal": True},
    "sliding": {"sliding_window": (8, (True, False))},
    "few tokens": {"draft_vocab_size": 40, "markov_head": "rnn"},
    "causal, few tokens": {"causal": True, "draft_vocab_size": 40},
    "embeddings": {"feature_layers": (-1, 2), "markov_head": "gated"},
    "scores": {"score_temperature": (0.5, 1.0), "confidence_with_markov": False},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_saved_drafters_load_again(tmp_path, name):
    model = jaxspec.load(TARGET, drafter="prompt_lookup", dtype="float32")
    config = published_config(model.spec.target, (0, 2), num_layers=2, block_size=4, markov_rank=6)
    config = dataclasses.replace(config, **VARIANTS[name])
    generator = np.random.default_rng(3)

    def fill(leaf):
        if jnp.issubdtype(leaf.dtype, jnp.integer):
            return jnp.arange(0, 3 * leaf.size, 3, dtype=jnp.int32)
        return jnp.asarray(generator.normal(size=leaf.shape), jnp.float32)

    variables = jax.tree.map(fill, jax.eval_shape(lambda: init_variables(config)))
    save(model.with_drafter("x", config, variables), tmp_path / "model")
    again = jaxspec.load(tmp_path / "model", dtype="float32")
    assert again.spec.drafter("x") == config
    jax.tree.map(np.testing.assert_array_equal, again.drafters["x"], variables)
    hf = config_json(tmp_path / "model/drafters/x")
    # Other readers must not take what they would misread.
    assert (hf["architectures"] == [OWN_ARCHITECTURE]) == config.causal
    assert ("speculators_model_type" in hf) == (
        name in ("slots of DFlash", "sliding", "few tokens")
    )


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"markov_rank": None}, "lacks 'markov_rank'"),
        ({"markov_rank": -2}, "markov_rank is -2"),
        ({"markov_head_type": "lstm"}, "unknown Markov head 'lstm': choose one of vanilla, gated, rnn"),
        ({"markov_rank": 0}, "cannot read a Markov head of rank 0"),
        ({"architectures": ["Gemma4DSparkModel"]}, "architecture 'Gemma4DSparkModel'"),
        ({"target_layer_ids": [1, 1]}, r"ascending layers, -1 \(the embeddings\) to 4, not \[1, 1\]"),
        ({"target_layer_ids": [-2, 1]}, "ascending layers"),
        ({"target_layer_ids": [1, 5]}, "ascending layers"),
        ({"target_layer_ids": None}, "ascending layers"),
        ({"mask_token_id": None}, "mask_token_id must be a token id"),
        ({"block_size": None}, "lacks 'block_size'"),
        ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 4}, "full attention in all layers"),
    ],
)  # fmt: skip
def test_configs_that_are_refused(tmp_path, entries, message):
    directory = edited("vanilla", tmp_path / "x", **entries)
    about = describe_checkpoint(directory)
    assert about["family"] == "dspark" and not about["readable"]
    with pytest.raises(ValueError, match=message) as caught:
        jaxspec.load(TARGET, drafter=directory)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("markov_head.markov_w1.weight", None, "1 missing: markov_head.markov_w1.weight"),
        ("markov_head.markov_w2.weight", (12, 160), r"markov_w2.weight \[12, 160\] \(expected \[160, 12\]\)"),
        ("confidence_head.proj.weight", (1, 48), r"proj.weight \[1, 48\] \(expected \[1, 60\]\)"),
        ("markov_head.gate_proj.weight", (12, 60), "1 unexpected: markov_head.gate_proj.weight"),
        ("embed_tokens.weight", (159, 48), r"embed_tokens.weight \[159, 48\] \(expected \[160, 48\]\)"),
    ],
)  # fmt: skip
def test_weights_that_are_refused(tmp_path, name, shape, message):
    directory = edited("vanilla", tmp_path / "x")
    tensors = load_file(directory / WEIGHTS)
    tensors.pop(name, None)
    if shape is not None:
        tensors[name] = np.zeros(shape, np.float32)
    save_file(tensors, directory / WEIGHTS)
    config = read_config(config_json(directory))
    for read in (FORMAT.check, lambda *found: FORMAT.read(*found, "float32")):
        with pytest.raises(WeightMismatch, match=message) as caught:
            read(directory, config)
        assert "\n" not in str(caught.value)


def test_deepspecs_own_dflash_is_told_from_z_labs():
    own, z_lab = directory_of("dflash"), SHIPPED / "dflash" / "drafter"
    about, other = describe_checkpoint(own), describe_checkpoint(z_lab)
    assert (about["family"], other["family"]) == ("dspark", "dflash")
    assert about["readable"] and "whose anchor proposes too" in about["layout"]
    config = read_any_config(config_json(own))
    assert config.markov_rank == 0 and config.depth == config.block_size
    assert read_any_config(config_json(z_lab)).depth == config_json(z_lab)["block_size"] - 1


def test_inspect_describes_a_drafter():
    about = describe_checkpoint(directory_of("rnn"))
    assert about["layout"] == "native (DeepSpec: DSpark)" and about["readable"]
    assert about["feature_layers"]["output_of_layer"] == [0, 1, 3]
    assert about["feature_layers"]["input_of_layer"] == [1, 2, 4]
    assert about["block_size"] == 5 and about["flags"]["markov_head_type"] == "rnn"
    assert "markov_rank=12" in render_description(about)


def test_a_convert_that_cannot_be(tmp_path):
    with pytest.raises(
        ValueError, match="a dspark drafter: write it with --to dspark or speculators"
    ):
        convert(directory_of("rnn"), tmp_path / "out", "dflash", TARGET)
    with pytest.raises(
        ValueError, match=r"saves the target's embed_tokens.weight .*: give --target"
    ):
        convert(directory_of("rnn"), tmp_path / "out", "dspark")


def test_packed_files_leave_out_the_targets_tensors(tmp_path):
    """A whole vocabulary needs no projection of its own; rows of the target's are lent."""
    model = jaxspec.load(TARGET, drafter=directory_of("vanilla"), dtype="float32")
    ((name, config),) = model.spec.drafters
    ids = jnp.arange(0, 160, 2, dtype=jnp.int32)
    variables = model.drafters[name]
    markov = variables["params"]["markov"] | {
        "w2": {"kernel": variables["params"]["markov"]["w2"]["kernel"][:, ids]}
    }
    reduced = {
        "params": variables["params"] | {"markov": markov},
        "draft": {"ids": ids, "lm_head": model.target["params"]["lm_head"][:, ids]},
    }
    few = dataclasses.replace(config, draft_vocab_size=80)
    save(model.with_drafter("few", few, reduced), tmp_path / "model")
    for source in (directory_of("vanilla"), tmp_path / "model/drafters/few"):
        packed = pack_checkpoint(source, tmp_path / "packed" / source.name, TARGET)
        assert not {"embed_tokens.weight", "lm_head.weight"} & set(load_file(packed / WEIGHTS))
        again = jaxspec.load(TARGET, drafter={"x": packed}, dtype="float32")
        assert again.spec.drafter("x") == (config if source.parent == GOLDEN else few)
        w1 = again.drafters["x"]["params"]["markov"]["w1"]
        np.testing.assert_allclose(w1, markov["w1"], atol=0.05)
    np.testing.assert_array_equal(
        again.drafters["x"]["draft"]["lm_head"], reduced["draft"]["lm_head"]
    )
    with pytest.raises(ValueError, match="leaves its output projection to the target"):
        FORMAT.stored(packed, few)


@pytest.mark.slow
def test_doctor_finds_shifted_layers(tmp_path):
    """Ids one too high, as if they counted inputs; drafts follow the text's own tokens."""
    traces = json.loads((GOLDEN / "decode.json").read_text())
    prompts = [trace["prompt"] for trace in traces[:5:2]]
    good = diagnose(TARGET, directory_of("vanilla"), prompts=prompts, max_new_tokens=32)
    assert good["warnings"] == [] and good["acceptance"] > 1.5
    shifted = edited("vanilla", tmp_path / "x", target_layer_ids=[1, 2, 4])
    (warning,) = diagnose(TARGET, shifted, prompts=prompts, max_new_tokens=32)["warnings"]
    assert "set target_layer_ids, which counts outputs, to [0, 1, 3]" in warning
