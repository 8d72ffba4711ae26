"""Quantised targets: how far values and logits are off, what is quantised, and that drafting still
changes nothing.
"""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from golden_data import SHIPPED
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxspec
from jaxspec.bench.architectures import abstract_params, architecture
from jaxspec.call.options import group_options
from jaxspec.cli.main import main
from jaxspec.core.params import Params
from jaxspec.drafters.eagle3 import files as eagle
from jaxspec.drafters.eagle3 import hf_config as eagle_config
from jaxspec.io.files.json_files import read_json
from jaxspec.io.files.safetensors_files import WeightFiles
from jaxspec.targets.families.hf_config import target_config
from jaxspec.targets.layouts.quant import (
    COLLECTION,
    KINDS,
    contracted_axis,
    kind_of,
    quantize,
    quantize_params,
)
from jaxspec.targets.linear import Weights, multiply
from jaxspec.targets.moe import mix_experts
from jaxspec.targets.transformer import Transformer
from jaxspec.targets.weights import from_hf

GOLDEN = SHIPPED
TARGET = GOLDEN / "dflash" / "target"
PROMPT = [117, 142, 122, 64, 240, 19]
DRAFTERS = {"dflash": GOLDEN / "dflash/drafter", "jetspec": GOLDEN / "jetspec/drafter"}
kinds = pytest.mark.parametrize("kind", KINDS)


def drafted(quantize):
    return jaxspec.load(TARGET, drafter=DRAFTERS, dtype="float32", quantize=quantize)


def eagle3() -> Params:
    target = jaxspec.load(GOLDEN / "tiny_llama", dtype="float32", quantize="int8")
    folder = GOLDEN / "eagle3" / "draft"
    config = eagle_config.for_target(
        eagle_config.config_from_hf(read_json(folder / "config.json")), target.spec.target
    )
    spec = dataclasses.replace(target.spec, drafters=(("eagle3", config),))
    return Params(target.target, {"eagle3": eagle.read(folder, config, "float32")}, spec)


@pytest.fixture(scope="module")
def int8():
    return drafted("int8")


def dequantized(variables, tied):
    """Plain weights that the quantised ones stand for."""
    scales, tree = flatten_dict(variables[COLLECTION]), flatten_dict(variables["params"])
    for path, scale in scales.items():
        tree[path] = tree[path].astype(jnp.float32) * jnp.expand_dims(
            scale, contracted_axis(path, tied)
        )
    return tree


@kinds
@pytest.mark.parametrize("axis", [-1, -2])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), spread=st.floats(0, 8), zero=st.booleans())
def test_each_channel_is_within_half_a_step(kind, axis, seed, spread, zero):
    generator = np.random.default_rng(seed)
    weights = generator.normal(size=(3, 24, 24)) * np.exp(generator.normal(size=(3, 1, 1)) * spread)
    weights = weights.astype(np.float32) * (not zero)
    values, scale = map(np.asarray, quantize(weights, kind, axis))
    scale = np.expand_dims(scale, axis)
    error, largest = (
        np.abs(values.astype(np.float32) * scale - weights),
        np.abs(weights).max(axis, keepdims=True),
    )
    # int8: half a step of the channel. fp8: 3 stored bits of a number's own fraction, and below
    # 2**-6 steps of 2**-9.
    bound = scale / 2 if kind == "int8" else np.maximum(np.abs(weights) / 16, scale * 2.0**-10)
    rounding = np.abs(weights) * 2.0**-22  # of the product in float32
    assert (error <= bound * (1 + 1e-5) + rounding).all()
    reached = np.abs(values.astype(np.float32)).max(axis, keepdims=True)
    assert (reached == np.where(largest > 0, KINDS[kind][1], 0)).all()


@pytest.mark.parametrize("name", ["qwen3_tied", "qwen3_moe_mixed"])
def test_forward_is_that_of_the_weights_that_are_stood_for(name):
    """Scales applied behind the products equal scales applied to the weights; and not all of it is
    quantised.
    """
    directory = GOLDEN / "targets" / name
    config = target_config(read_json(directory / "config.json"))
    variables = from_hf(WeightFiles(directory), config, "float32", "int8")
    paths = set(flatten_dict(variables[COLLECTION]))
    names = {path[-1] for path in paths}
    assert ("embedding" in names) == config.tie_embeddings and (
        "lm_head" in names
    ) != config.tie_embeddings
    stay = {
        path
        for path, leaf in flatten_dict(variables["params"]).items()
        if leaf.dtype == jnp.float32
    }
    assert {path[-1] for path in stay} <= {
        "scale",
        "bias",
        "router",
        "embedding",
    } and not stay & paths
    tokens = jnp.arange(12).reshape(2, 6) % config.vocab_size
    positions = jnp.broadcast_to(jnp.arange(6), (2, 6))

    @jax.jit
    def forward(variables):
        model = Transformer(config).bind(variables)
        return model.logits(model(tokens, positions).hidden)

    plain = {"params": unflatten_dict(dequantized(variables, config.tie_embeddings))}
    np.testing.assert_allclose(forward(variables), forward(plain), rtol=1e-4, atol=1e-4)


def test_experts_in_tiles():
    generator = np.random.default_rng(0)
    x, gate_up, down = (
        generator.normal(size=size).astype(np.float32) for size in ((9, 8), (4, 8, 12), (4, 6, 8))
    )
    expert, weight = generator.integers(0, 4, (9, 1)).astype(np.int32), np.ones((9, 1), np.float32)
    (up_values, up_scale), (down_values, down_scale) = (
        quantize(w, "int8", -2) for w in (gate_up, down)
    )
    plain = (
        up_values.astype(jnp.float32) * up_scale[:, None],
        down_values.astype(jnp.float32) * down_scale[:, None],
    )
    x, expert, weight = map(jnp.asarray, (x, expert, weight))
    mix = functools.partial(mix_experts, x, expert, weight, tiles_per_step=4)
    np.testing.assert_allclose(
        mix(up_values, down_values, up_scale, down_scale), mix(*plain), rtol=1e-4, atol=1e-4
    )


def test_float16_does_not_overflow():
    """The sum over 64 values of 127 times 16 exceeds float16's 65504; its product with the scale
    does not.
    """
    values, scale = quantize(jnp.full((64, 2), 0.5), "int8", -2)
    assert multiply(
        jnp.full((1, 64), 16, jnp.float16), Weights(values, {COLLECTION: scale})
    ).tolist() == [[512.0, 512.0]]


METHODS = {
    "dflash": dict(drafter="dflash", builder="chain", budget=8),
    "jetspec": dict(drafter="jetspec", builder="expand/w3", budget=16),
}
slow = pytest.mark.slow


@slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", ["dflash", "jetspec"])
def test_drafting_for_a_quantised_target_changes_nothing(int8, method, temperature):
    plain = jaxspec.decode(int8, PROMPT, drafter="ar", max_new_tokens=24, temperature=temperature)
    out = jaxspec.decode(
        int8, PROMPT, max_new_tokens=24, temperature=temperature, **group_options(**METHODS[method])
    )
    assert out.tokens == plain.tokens
    assert (
        method == "dflash" or out.stats.rounds < plain.stats.rounds
    )  # the untrained DFlash head's drafts fit rarely


@slow
@pytest.mark.parametrize("load", [lambda: drafted("fp8"), eagle3], ids=["fp8", "eagle3"])
def test_greedy_drafting_changes_nothing(load):
    params = load()
    plain = jaxspec.decode(params, PROMPT, drafter="ar", max_new_tokens=24)
    assert jaxspec.decode(params, PROMPT, max_new_tokens=24, budget=32).tokens == plain.tokens


def test_loaded_quantised_equals_quantised_when_loaded(int8):
    params = quantize_params(drafted(None), "int8")
    assert kind_of(params.target) == "int8" and params.spec == int8.spec
    assert jax.tree.structure(params) == jax.tree.structure(int8)
    jax.tree.map(np.testing.assert_array_equal, params.target, int8.target)
    jax.tree.map(np.testing.assert_array_equal, params.drafters, int8.drafters)


@slow
@kinds
def test_logits_of_mini(kind):
    """Of float32 logits with a standard deviation of 2.1; measured 0.018 (int8) and 0.067 (fp8)
    root mean square.
    """
    params = jaxspec.load("mini", drafter="prompt_lookup", dtype="float32")
    tokens = jax.random.randint(jax.random.key(0), (1, 32), 0, params.spec.target.vocab_size)

    @jax.jit
    def forward(variables):
        model = Transformer(params.spec.target).bind(variables)
        return model.logits(model(tokens, jnp.arange(32)[None]).hidden)

    error = forward(quantize_params(params, kind).target) - forward(params.target)
    assert jnp.sqrt(jnp.mean(error**2)) < {"int8": 0.03, "fp8": 0.1}[kind]


@kinds
def test_weights_take_half_of_bfloat16(kind):
    """Traced, as for a model that does not fit in memory; scales and norms are what is left of the
    other half.
    """
    spec = dataclasses.replace(architecture("qwen3-8b"), drafters=())
    plain = abstract_params(spec)
    small = jax.eval_shape(lambda params: quantize_params(params, kind), plain)

    def size(params):
        kernels = {
            path: leaf
            for path, leaf in flatten_dict(params.target).items()
            if path[-1] != "embedding"
        }
        return sum(leaf.size * leaf.dtype.itemsize for leaf in kernels.values())

    assert 0.5 < size(small) / size(plain) < 0.502
    assert small.dtype == plain.dtype == jnp.bfloat16


def test_refusals(int8, tmp_path, capsys):
    with pytest.raises(ValueError, match="unknown quantisation 'int3': .*choose one of int8, fp8"):
        jaxspec.load(TARGET, quantize="int3")
    with pytest.raises(ValueError, match="already quantised to int8"):
        quantize_params(int8, "fp8")
    with pytest.raises(ValueError, match="cannot be written: load the model with quantize='none'"):
        jaxspec.save(int8, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    with pytest.raises(SystemExit):
        main(["generate", str(TARGET), "--quantize", "int3"])
    assert "--quantize" in capsys.readouterr().err


@pytest.mark.thorough
def test_command_line(int8, capsys):
    model = [str(TARGET), "--dtype", "float32", "--quantize", "int8"]
    prompt = [
        "--token-ids",
        "--prompt",
        ",".join(map(str, PROMPT)),
        "--max-new-tokens",
        "24",
        "--temperature",
        "1",
        "--json",
    ]
    assert main(["generate", *model, "--drafter", "ar", *prompt]) == 0
    expected = jaxspec.decode(int8, PROMPT, drafter="ar", max_new_tokens=24, temperature=1.0)
    assert json.loads(capsys.readouterr().out)["tokens"] == expected.tokens


def test_orbax_round_trip(tmp_path):
    import orbax.checkpoint as ocp

    directory = GOLDEN / "targets/qwen3_tied"
    variables = from_hf(
        WeightFiles(directory),
        target_config(read_json(directory / "config.json")),
        "float32",
        "fp8",
    )
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "target", variables)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "target", jax.eval_shape(lambda: variables))
    assert kind_of(restored) == "fp8"
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a.view(np.int8), b.view(np.int8)),
        restored,
        variables,
    )
