"""The targets against transformers' PyTorch models: logits and the output of every decoder layer,
float32.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.io.files.safetensors_files import WeightFiles, write_safetensors
from jaxspec.targets.families.hf_config import target_config, target_config_to_hf
from jaxspec.targets.transformer import Transformer
from jaxspec.targets.weights import from_hf, to_hf

TOLERANCE = 1e-4


@functools.partial(jax.jit, static_argnums=0)
def _apply(module, params, tokens, positions):
    out = module.apply(
        params, tokens, positions, feature_layers=tuple(range(module.config.num_layers))
    )
    return out, module.apply(params, out.hidden, method="logits")


def run(module, params, tokens, positions):
    """(logits, features [L, B, T, E]) of a plain causal forward with every layer's output."""
    out, logits = _apply(
        module, params, jnp.asarray(tokens, jnp.int32), jnp.asarray(positions, jnp.int32)
    )
    layers = range(module.config.num_layers)
    features = out.features.reshape(*out.features.shape[:2], len(layers), -1)
    return np.asarray(logits), np.moveaxis(np.asarray(features), 2, 0)


def test_logits_and_every_feature_layer(golden):
    logits, features = run(
        golden.module, golden.params, golden.expected["tokens"], golden.expected["positions"]
    )
    np.testing.assert_allclose(logits, golden.expected["logits"], rtol=0, atol=TOLERANCE)
    expected = golden.expected["features"]
    # Features of Gemma 4 reach 6; jax 0.7.2 rounds one of them differently by 1.2e-4.
    atol = TOLERANCE * max(1.0, float(np.abs(expected).max()) / 4)
    np.testing.assert_allclose(features, expected, rtol=0, atol=atol)


def test_parameters_are_the_modules_own(golden):
    tokens = jnp.zeros((1, 2), jnp.int32)
    made = jax.eval_shape(lambda: golden.module.init(jax.random.key(0), tokens, tokens))
    shapes = jax.tree.map(lambda array: (array.shape, array.dtype), golden.params)
    assert shapes == jax.tree.map(lambda array: (array.shape, array.dtype), made)


def test_written_weights_and_config_read_back(golden):
    config = target_config(target_config_to_hf(golden.config))
    assert config == golden.config
    again = from_hf(to_hf(golden.params, golden.config), config)
    assert jax.tree.all(jax.tree.map(np.array_equal, again, golden.params))


@pytest.mark.torch
def test_live_comparison_with_pytorch(golden, request, tmp_path):
    """Fresh PyTorch results, and PyTorch reading what this library writes."""
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM

    spec = importlib.util.spec_from_file_location(
        "make_fixtures", Path(__file__).with_name("make_fixtures.py")
    )
    fixtures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fixtures)
    model = fixtures.build(request.node.callspec.params["golden"])
    expected = fixtures.expected(model)
    config = target_config(model.config.to_dict() | {"architectures": [type(model).__name__]})
    # The modules in memory fuse experts; save_pretrained writes the published layout, which is what
    # is read here.
    model.save_pretrained(tmp_path / "theirs")

    params = from_hf(WeightFiles(tmp_path / "theirs"), config)
    logits, features = run(Transformer(config), params, expected["tokens"], expected["positions"])
    np.testing.assert_allclose(logits, expected["logits"], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(features, expected["features"], rtol=0, atol=TOLERANCE)

    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "config.json").write_text(json.dumps(target_config_to_hf(config)))
    write_safetensors(ours / "model.safetensors", to_hf(params, config))
    assert AutoConfig.from_pretrained(ours).rope_parameters == model.config.rope_parameters
    theirs = AutoModelForCausalLM.from_pretrained(ours, dtype=torch.float32)
    again = fixtures.expected(theirs.eval())
    np.testing.assert_array_equal(again["logits"], expected["logits"])
