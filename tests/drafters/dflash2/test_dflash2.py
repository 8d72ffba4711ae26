"""DFlash2 against its formulas, written out with loops in NumPy, since no reference data exist."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pair_toys import bundle_of, check_text
from safetensors.numpy import load_file, save_file

import jaxspec
from jaxspec.bench.architectures import ARCHITECTURES
from jaxspec.core.cache import allocate, append
from jaxspec.core.config import TargetConfig
from jaxspec.core.state import Nodes
from jaxspec.drafters.base import TargetHead
from jaxspec.drafters.dflash.network import BlockDrafter, BlockDrafterConfig
from jaxspec.drafters.dflash2.files import dflash2_leaves, read_config
from jaxspec.drafters.dflash2.network import (
    ConvolvedLayer,
    DFlash2,
    DFlash2Config,
    DynamicConv,
    init_variables,
)
from jaxspec.drafters.registry import make_drafter
from jaxspec.io.files.safetensors_files import WEIGHTS
from jaxspec.io.weights.weight_map import WeightMismatch
from jaxspec.targets.attention import full_mask
from jaxspec.targets.layers import DecoderLayer
from jaxspec.targets.rope import rope_table
from jaxspec.zoo.convert import convert
from jaxspec.zoo.inspect import describe_checkpoint
from jaxspec.zoo.save import save

SIZES = dict(hidden_size=16, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=8, ffn_size=24)
VOCAB = 37
BLOCK = SIZES | dict(
    block_size=5, mask_token_id=3, feature_layers=(0, 2), target_hidden_size=16, vocab_size=VOCAB
)
CONFIG = DFlash2Config(
    **BLOCK,
    conv_group_size=4,
    conv_kernel_size=3,
    selector_rank=6,
    selector_top_k=5,
    output_multiplier=0.7,
    logit_softcap=3.0,
    embedding_scale=2.0,
)
TARGET = TargetConfig(
    **SIZES | {"num_layers": 3}, family="qwen3", vocab_size=VOCAB, tie_embeddings=True,
    max_positions=256,
)  # fmt: skip


@pytest.fixture(scope="module")
def variables():
    generator = np.random.default_rng(5)
    shapes = jax.eval_shape(lambda: init_variables(CONFIG))
    return jax.tree.map(
        lambda leaf: jnp.asarray(generator.normal(scale=0.3, size=leaf.shape), jnp.float32), shapes
    )


def rows(*shape, seed=7):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def convolve_by_loops(n, x, conv, side):
    """Formula (a) of the specification: row i takes rows i - t, weighted channel by channel.

    The dynamic part of the kernel comes from `n`, and is laid out as side, tap, group.
    """
    (batch, length, width), taps = x.shape, CONFIG.conv_kernel_size
    projected = n @ np.asarray(conv["kernel_projection"]["kernel"])
    out = np.zeros_like(x)
    for b in range(batch):
        for i in range(length):
            for channel in range(width):
                group = channel // CONFIG.conv_group_size
                for t in range(min(taps, i + 1)):
                    place = (side * taps + t) * CONFIG.groups + group
                    kernel = conv["base_kernel"][side, t, channel] + projected[b, i, place]
                    out[b, i, channel] += kernel * x[b, i - t, channel]
    return out


def test_convolutions(variables):
    conv = variables["params"]["layers_0"]["mlp_conv"]
    n, y = rows(2, 5, 16), rows(2, 5, 16, seed=8)
    module = DynamicConv(CONFIG).bind({"params": conv})
    prepared, dynamic = module.prepare(n)
    np.testing.assert_allclose(prepared, convolve_by_loops(n, n, conv, 0), atol=1e-5)
    np.testing.assert_allclose(
        module.finish(y, dynamic), convolve_by_loops(n, y, conv, 1), atol=1e-5
    )


def test_a_layer(variables):
    """Convolutions go around attention and feed-forward, between the norm and the addition."""
    weights, x = variables["params"]["layers_1"], rows(2, 5, 16)
    positions = jnp.arange(5)[None] + jnp.array([[3], [9]])
    rope, mask = rope_table(positions, CONFIG), full_mask(2, 5)
    ours, _ = ConvolvedLayer(CONFIG).apply({"params": weights}, x, rope, positions, mask)
    plain = {name: part for name, part in weights.items() if "conv" not in name}
    layer = DecoderLayer(CONFIG).bind({"params": plain})
    n = np.asarray(layer.attention_norm(x))
    into = convolve_by_loops(n, n, weights["attention_conv"], 0)
    attended, _ = layer.attention(jnp.asarray(into), rope, positions, mask, None)
    y = x + convolve_by_loops(n, np.asarray(attended), weights["attention_conv"], 1)
    n = np.asarray(layer.mlp_norm(y))
    out = np.asarray(layer.mlp(jnp.asarray(convolve_by_loops(n, n, weights["mlp_conv"], 0))))
    y = y + convolve_by_loops(n, out, weights["mlp_conv"], 1)
    np.testing.assert_allclose(ours, y, atol=2e-5)


def context(variables, length=6):
    features = jnp.asarray(rows(1, length, 32, seed=9))
    positions = jnp.arange(length)[None]
    k, v = DFlash2(CONFIG).apply(variables, features, positions, method="context_kv")
    return append(allocate(CONFIG, 1, 16, jnp.float32), (k,), (v,), jnp.array([length]))


@pytest.mark.thorough
def test_without_its_additions_it_is_dflash(variables):
    """Kernels that pass rows on; the context is not convolved."""
    params = dict(variables["params"])
    for layer in ("layers_0", "layers_1"):
        conv = jax.tree.map(jnp.zeros_like, params[layer]["attention_conv"])
        conv["base_kernel"] = conv["base_kernel"].at[:, 0].set(1)
        params[layer] = params[layer] | {"attention_conv": conv, "mlp_conv": conv}
    cache, block = context(variables), jnp.asarray(rows(1, 5, 16))
    positions = 6 + jnp.arange(5)[None]
    ours = DFlash2(CONFIG).apply({"params": params}, block, positions, cache)
    theirs = BlockDrafter(BlockDrafterConfig(**BLOCK)).apply(
        {"params": {name: params[name] for name in params if name != "selector"}},
        block, positions, cache,
    )  # fmt: skip
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.thorough
def test_the_selectors_walk(variables):
    """Formula (b): the most probable tokens of each slot, scored after the token before."""
    table = rows(VOCAB, 16, seed=11)
    target = TargetHead(lambda tokens: jnp.take(table, tokens, axis=0), lambda x: x @ table.T)
    cache, anchor = context(variables), 4
    bundle = make_drafter(CONFIG)
    proposal, scratch = bundle.start(variables, cache, target, jnp.array([anchor]), CONFIG.depth)
    block = 2.0 * table[np.array([[anchor, 3, 3, 3, 3]])]
    hidden = DFlash2(CONFIG).apply(variables, block, 6 + jnp.arange(5)[None], cache)[0, 1:]
    selector = jax.tree.map(np.asarray, variables["params"]["selector"])
    previous = anchor
    for slot, h in enumerate(np.asarray(hidden)):
        unary = 3.0 * np.tanh(0.7 * (table @ h) / 3.0)
        expected = np.full(VOCAB, -np.inf, np.float32)
        projected = h @ selector["hidden_projection"]["kernel"]
        for token in sorted(range(VOCAB), key=lambda x: -unary[x])[:5]:
            pair = selector["predecessor"][previous] * projected * selector["successor"][token]
            expected[token] = unary[token] + pair.sum()
        np.testing.assert_allclose(proposal.logits[0, 0, 0], expected, atol=2e-5)
        previous = int(expected.argmax())
        place = jnp.full((1, 1), slot, jnp.int32)
        node = Nodes(jnp.full((1, 1), previous), place, place + 1, place, place == place)
        proposal, scratch = bundle.expand(
            variables, cache, scratch, target, node, jnp.int32(slot + 1)
        )


@pytest.mark.slow
def test_the_text_is_the_targets(variables):
    params = bundle_of("dflash2", CONFIG, variables, TARGET)
    for options in ({}, {"temperature": 1.0}, {"builder": "dynamic", "budget": 12}, {"depth": 2}):
        check_text(params, "dflash2", **options)


def test_read_write_read_and_damage(tmp_path, variables):
    model = bundle_of("dflash2", CONFIG, variables, TARGET)
    save(model, tmp_path / "model")
    directory = tmp_path / "model/drafters/dflash2"
    again = jaxspec.load(tmp_path / "model", dtype="float32")
    assert again.spec.drafter("dflash2") == CONFIG
    jax.tree.map(np.testing.assert_array_equal, again.drafters["dflash2"], variables)
    about = describe_checkpoint(directory)
    assert about["family"] == "dflash2" and about["readable"]
    out = convert(directory, tmp_path / "out", "dflash2", tmp_path / "model")
    before, after = load_file(directory / WEIGHTS), load_file(out / WEIGHTS)
    assert before.keys() == after.keys()
    del before["layers.1.mlp_conv.base_kernel"]
    save_file(before, directory / WEIGHTS)
    with pytest.raises(WeightMismatch, match="1 missing: layers.1.mlp_conv.base_kernel"):
        jaxspec.load(tmp_path / "model")


def test_the_speculators_schema(tmp_path, variables):
    factors = {"output_multiplier": 1.0, "logit_softcap": None, "embedding_scale": 1.0}
    config = dataclasses.replace(CONFIG, **factors)
    model, directory = tmp_path / "model", tmp_path / "model/drafters/dflash2"
    save(bundle_of("dflash2", config, variables, TARGET), model)
    schema = convert(directory, tmp_path / "schema", "speculators", model, "me/model")
    hf, before = json.loads((schema / "config.json").read_text()), load_file(directory / WEIGHTS)
    assert hf["speculators_model_type"] == "dflash2" and read_config(hf) == config
    copies = load_file(schema / WEIGHTS).keys() - before.keys()
    assert copies == {"embed_tokens.weight", "lm_head.weight"}
    about = describe_checkpoint(schema)
    assert about["family"] == "dflash2" and about["readable"]
    read = jaxspec.load(model, drafter=schema, dtype="float32").drafters["dflash2"]
    jax.tree.map(np.testing.assert_array_equal, read, variables)
    native = convert(schema, tmp_path / "native", "dflash2")
    assert load_file(native / WEIGHTS).keys() == before.keys()
    save(bundle_of("dflash2", CONFIG, variables, TARGET), tmp_path / "other")
    with pytest.raises(ValueError, match="schema has no output_multiplier: .*--to dflash2"):
        directory = tmp_path / "other/drafters/dflash2"
        convert(directory, tmp_path / "x", "speculators", tmp_path / "other", "me/model")


PUBLISHED = {
    "architectures": ["DFlash2DraftModel"], "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 5,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288,
    "rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000}, "vocab_size": 151936,
    "layer_types": ["sliding_attention"] * 5, "sliding_window": 2048, "num_target_layers": 36,
    "dflash_config": {
        "block_size": 8, "conv_group_size": 16, "conv_kernel_size": 2, "selector_rank": 256, "selector_top_k": 16,
        "mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33],
    },
}  # fmt: skip


def test_names_and_shapes_of_a_published_checkpoint():
    config = read_config(PUBLISHED)
    assert config.depth == 7 and config.sliding_window == (2048, (True,) * 5)
    assert config.hidden_size == ARCHITECTURES["qwen3-8b"].hidden_size
    stored = {name: shape for leaf in dflash2_leaves(config) for name, _, _, shape in leaf.parts()}
    assert len(stored) == 3 + (11 + 4) * 5 + 3
    assert stored["layers.4.attention_conv.base_kernel"] == (2, 2, 4096)
    assert stored["layers.0.mlp_conv.kernel_projection.weight"] == (2 * 2 * 256, 4096)
    assert stored["candidate_selector.predecessor_codebook"] == (151936, 256)
    assert stored["candidate_selector.successor_codebook"] == (151936, 256)
    assert stored["candidate_selector.hidden_projection.weight"] == (256, 4096)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"selector_rank": None}, "selector_rank"),
        ({"selector_top_k": 0}, "selector_top_k"),
        ({"conv_group_size": 24}, "conv_group_size is 24, which does not divide"),
        ({"final_logit_softcapping": -1.0}, "final_logit_softcapping"),
        ({"block_size": 1}, "block_size counts the anchor"),
    ],
)
def test_what_is_refused(tmp_path, entries, message):
    own = PUBLISHED["dflash_config"] | entries
    own = {name: value for name, value in own.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED | {"dflash_config": own}))
    about = describe_checkpoint(tmp_path)
    assert about["family"] in ("dflash", "dflash2") and message in about["problem"]
    assert "\n" not in about["problem"]
    with pytest.raises(ValueError, match=message):
        read_config(PUBLISHED | {"dflash_config": own})


def test_a_reduced_vocabulary_is_refused():
    with pytest.raises(ValueError, match="no reduced draft vocabulary"):
        dataclasses.replace(CONFIG, draft_vocab_size=9)
