"""Attention by tiles where the engine verifies packed rows, in Pallas' interpreter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sharded_toys import make_params

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.call.resolve import resolve_config
from jaxspec.core.cache import PackedCache
from jaxspec.core.state import KVCache
from jaxspec.core.tree import ancestor_words
from jaxspec.round.plan import make_plan
from jaxspec.serve import ServeRequest, make_engine
from jaxspec.serve.on_device.packed_rows import pack
from jaxspec.tuner.serving.costs import Costs
from pallas_kernels.registry import using

PROMPTS = tuple(range(5, 25)), (5, 6, 7)
OPTIONS = dict(max_new_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def params():
    return make_params("qwen3", ("dflash",), head_dim=64, num_heads=4)


@pytest.mark.thorough
def test_a_forward_of_packed_rows_is_the_same_by_tiles_and_by_slot(params):
    random, config = np.random.default_rng(3), params.spec.target
    target = make_plan(params.spec, resolve_config(params.spec, drafter="ar")[0]).target
    shape = (config.num_layers, 3, config.num_kv_heads, 64, config.head_dim)
    k, v = (jnp.asarray(random.standard_normal(shape), jnp.float32) for _ in range(2))
    count, length = jnp.array([7, 0, 2]), jnp.array([40, 9, 0])
    parent = np.array([[-1, 0, 0, 1, 1, 3, 2]] * 3, np.int32)
    words = jax.vmap(ancestor_words)(parent)

    @jax.jit
    def forward(count):
        packing = pack(count, 12, 7)
        cache = PackedCache(KVCache((k,), (v,), length), packing)
        tokens = (17 * packing.slot + packing.row)[None]
        positions = (length[packing.slot] + packing.row)[None]
        out = target.apply(params.target, tokens, positions, cache, words)
        return out.hidden[0, :9], out.k[0][:, :, :9], out.v[0][:, :, :9]

    want = forward(count)
    with using("interpret"):
        assert "packed_attention" in str(jax.make_jaxpr(forward)(count))
        got = forward(count)
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_an_engine_by_tiles_gives_the_texts_of_decode(params):
    prompts = [list(prompt) for prompt in PROMPTS]
    want = jaxspec.decode(params, prompts, drafter="ar", **group_options(**OPTIONS))
    shape = dict(slots=2, capacity=128, budget=6, edges=(2, 8), rounds=4, rule="fixed")
    with using("interpret"):
        engine = make_engine(params, costs=Costs((1.0, 1.5), (5.0,) * 2), **shape)
        for method in ("ar", None):
            ids = [engine.submit(ServeRequest(each, drafter=method, **OPTIONS)) for each in PROMPTS]
            found = {id: [] for id in ids}
            while not engine.idle:
                for update in engine.visit():
                    found[update.id] += update.tokens
            for tokens, expected in zip(found.values(), want, strict=True):
                np.testing.assert_array_equal(tokens, expected.tokens)
    assert engine.counters()["rows_per_round"][8] == engine.counters()["drafted_rounds"] > 0
