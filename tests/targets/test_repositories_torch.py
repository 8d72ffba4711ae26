"""Published repositories against transformers: small copies give the same logits, and entries that
a config.json leaves out are read as the classes do.
"""

from __future__ import annotations

import json
import logging

import jax.numpy as jnp
import numpy as np
import pytest
from make_repositories import derive
from repositories import list_recorded, read_repository, shrink, write_small

import jaxspec
from jaxspec.targets.families.hf_config import target_config
from jaxspec.targets.families.registry import families
from jaxspec.targets.transformer import Transformer

pytestmark = pytest.mark.torch
RECORDED = {name: read_repository(name) for name in list_recorded()}
PLAIN = [
    name
    for name, one in RECORDED.items()
    if one.target is None
    and "quantization_config" not in one.config
    and "text_config" not in one.config
]
LAYERS = {"smollm3-3b": 4, "olmo-3-7b-instruct": 4}
# Entries whose absence is not told from null, which means that there is no window.
NULL = {("mistral", "sliding_window")}


@pytest.mark.parametrize("name", RECORDED)
def test_names_and_shapes_are_those_of_the_class(name):
    pytest.importorskip("torch")
    assert derive(RECORDED[name]).tensors == RECORDED[name].tensors


@pytest.mark.parametrize("name", PLAIN)
def test_a_small_target_computes_the_same(name, tmp_path, caplog):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    caplog.set_level(logging.ERROR)
    write_small(shrink(RECORDED[name], LAYERS.get(name, 2)), tmp_path)
    how = {"dtype": torch.float32, "attn_implementation": "eager"}
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, **how).eval()
    params = jaxspec.load(tmp_path, dtype="float32", drafter={})
    tokens = np.random.default_rng(0).integers(0, params.spec.target.vocab_size, (1, 33))
    module = Transformer(params.spec.target)
    out = module.apply(params.target, jnp.asarray(tokens), jnp.arange(33)[None])
    ours = module.apply(params.target, out.hidden, method="logits")
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens)).logits.numpy()
    np.testing.assert_allclose(ours, expected, rtol=0, atol=3e-4)


@pytest.mark.parametrize("name", [family.name for family in families()])
def test_entries_that_a_file_leaves_out(name):
    """Every entry of the class, left out alone: read as the class does, or refused."""
    from transformers import CONFIG_MAPPING

    make = CONFIG_MAPPING[name]
    sizes = {"head_dim": 128} if name == "glm4_moe" else {}  # its class's own is odd
    whole = _entries(make(**sizes))
    own = {"model_type", "architectures", "transformers_version", *sizes}
    for left_out in whole.keys() - own:
        if (name, left_out) in NULL:
            continue
        given = {k: v for k, v in whole.items() if k != left_out}
        try:
            found = target_config(given)
        except ValueError as error:
            assert f"lacks '{left_out}'" in str(error), left_out
            continue
        kept = {k: v for k, v in given.items() if k not in own} | sizes
        assert found == target_config(_entries(make(**kept))), left_out


def _entries(config) -> dict:
    found = json.loads(json.dumps(config.to_dict()))
    return {name: value for name, value in found.items() if value is not None}
