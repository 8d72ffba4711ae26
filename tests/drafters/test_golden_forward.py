"""Hidden states, caches and logits of three successive rounds of the authors' own PyTorch code."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays, golden, numbers, target_of

import jaxspec
from jaxspec.core.cache import allocate, append
from jaxspec.drafters.dflash.network import BlockDrafter
from jaxspec.targets.transformer import Transformer

HIDDEN, FEATURES, LOGITS = 5e-5, 1e-4, 1e-4


class Golden:
    """A target, its drafter and the recorded arrays."""

    def __init__(self, method):
        self.params = jaxspec.load(
            target_of(method), drafter=golden(method, "drafter"), dtype="float32"
        )
        ((self.name, self.config),) = self.params.spec.drafters
        self.arrays = arrays(method, "forward.npz")
        longest = max(x.shape[1] for x in self.arrays.values() if x.ndim > 1)
        # Room for the prompt and all rounds.
        self.capacity = longest + self.config.block_size * (1 + len(self.rounds()))
        target, drafter = Transformer(self.params.spec.target), BlockDrafter(self.config)
        forward = functools.partial(target.apply, self.params.target)
        self.target = jax.jit(forward, static_argnames=("feature_layers",))
        self.unembed = lambda hidden: target.apply(self.params.target, hidden, method="logits")
        self.embed = lambda tokens: target.apply(self.params.target, tokens, method="embed")
        weights = self.params.drafters[self.name]
        self.drafter = lambda *args, **kwargs: drafter.apply(weights, *args, **kwargs)

    def rounds(self, prompt=""):
        """Prefixes of the recorded rounds of a prompt."""
        return [f"{prompt}it{n}_" for n in numbers(self.arrays, f"{prompt}it", "_")]

    def fresh_cache(self):
        return allocate(self.config, 1, self.capacity, jnp.float32)

    def absorb(self, cache, features):
        """The drafter's cache after features of the next committed tokens, as the decode loop does
        it.
        """
        positions = cache.length[:, None] + jnp.arange(features.shape[1])
        k, v = self.drafter(jnp.asarray(features), positions, method="context_kv")
        return append(cache, (k,), (v,), jnp.array([features.shape[1]]))

    def draft(self, cache, tokens):
        """Hidden states of a block whose slots hold `tokens`."""
        positions = cache.length[:, None] + jnp.arange(tokens.shape[1])
        return self.drafter(self.embed(jnp.asarray(tokens)), positions, cache)

    def block(self, anchor, path=()):
        slots = np.full((1, self.config.block_size), self.config.mask_token_id, np.int32)
        slots[0, 0] = anchor
        slots[0, 1 : 1 + len(path)] = path
        return slots


@pytest.fixture(scope="module")
def dflash():
    return Golden("dflash")


@pytest.fixture(scope="module")
def jetspec():
    return Golden("jetspec")


def close(ours, theirs, tolerance):
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=0, atol=tolerance)


def test_prefill_of_the_target(dflash):
    ids = dflash.arrays["prompt_ids"]
    states = dflash.arrays["prefill_hidden_states"]
    layers = tuple(range(len(states) - 2))
    out = dflash.target(ids, jnp.arange(ids.shape[1])[None], feature_layers=layers)
    for i in layers:
        width = states.shape[-1]
        close(out.features[0, :, i * width : (i + 1) * width], states[i + 1], FEATURES)
    close(out.hidden[0], states[-1], HIDDEN)
    close(dflash.unembed(out.hidden), dflash.arrays["prefill_logits"], LOGITS)


@pytest.mark.parametrize("prompt", ["", "long_"])
def test_dflash_rounds(dflash, prompt):
    arrays = dflash.arrays
    cache = dflash.fresh_cache()
    for prefix in dflash.rounds(prompt):
        cache = dflash.absorb(cache, arrays[f"{prefix}target_hidden"])
        assert int(cache.length[0]) == arrays[f"{prefix}start"]
        block = dflash.block(arrays[f"{prefix}block_ids"][0, 0])
        np.testing.assert_array_equal(block, arrays[f"{prefix}block_ids"])
        hidden = dflash.draft(cache, block)
        close(hidden, arrays[f"{prefix}hidden"], HIDDEN)
        logits = dflash.unembed(hidden[:, 1:])
        close(logits, arrays[f"{prefix}draft_logits"], LOGITS)
        np.testing.assert_array_equal(np.argmax(logits, -1), arrays[f"{prefix}draft_tokens"])
        if not prompt:
            check_caches(dflash, cache, prefix)


def check_caches(golden, cache, prefix):
    length = int(cache.length[0])
    for layer in range(golden.config.num_layers):
        close(cache.k[0][layer, :, :, :length], golden.arrays[f"{prefix}cache_k{layer}"], HIDDEN)
        close(cache.v[0][layer, :, :, :length], golden.arrays[f"{prefix}cache_v{layer}"], HIDDEN)


def test_jetspec_rounds(jetspec):
    arrays, cache = jetspec.arrays, jetspec.fresh_cache()
    for prefix in jetspec.rounds():
        cache = jetspec.absorb(cache, arrays[f"{prefix}head_target_hidden"])
        anchor, path = arrays[f"{prefix}committed"][0, -1], arrays[f"{prefix}cond_path"]
        hidden = jetspec.draft(cache, jetspec.block(anchor))
        close(hidden, arrays[f"{prefix}hidden"], HIDDEN)
        close(jetspec.unembed(hidden[:, 1:]), arrays[f"{prefix}draft_logits"], LOGITS)
        close(jetspec.unembed(hidden[:, :-1]), arrays[f"{prefix}shift_logits"], LOGITS)
        conditioned = jetspec.draft(cache, jetspec.block(anchor, path))
        close(jetspec.unembed(conditioned[:, 1:]), arrays[f"{prefix}cond_logits"], LOGITS)
        check_caches(jetspec, cache, prefix)


def test_the_causal_flag_matters(jetspec):
    """The golden run of the same weights without the mask; a causal head may be cut to fewer slots,
    this one may not.
    """
    arrays = jetspec.arrays
    cache = jetspec.absorb(jetspec.fresh_cache(), arrays["it1_head_target_hidden"])
    free = BlockDrafter(dataclasses.replace(jetspec.config, causal=False))
    block = jetspec.block(arrays["it1_committed"][0, -1])
    positions = cache.length[:, None] + jnp.arange(block.shape[1])
    hidden = free.apply(
        jetspec.params.drafters[jetspec.name], jetspec.embed(block), positions, cache
    )
    close(jetspec.unembed(hidden[:, 1:]), arrays["it1_bidir_logits"], LOGITS)
    half = block.shape[1] // 2
    short = jetspec.draft(cache, block[:, :half])
    close(jetspec.unembed(short[:, 1:]), arrays["it1_draft_logits"][:, : half - 1], LOGITS)


def test_verify_logits_of_a_chain(dflash):
    arrays, spec = dflash.arrays, dflash.params.spec
    ids = arrays["prompt_ids"]
    out = dflash.target(ids, jnp.arange(ids.shape[1])[None])
    cache = append(
        allocate(spec.target, 1, dflash.capacity, jnp.float32),
        out.k,
        out.v,
        jnp.array([ids.shape[1]]),
    )
    for prefix in dflash.rounds():
        verify = arrays[f"{prefix}verify_ids"]
        out = dflash.target(verify, cache.length[:, None] + jnp.arange(verify.shape[1]), cache)
        close(dflash.unembed(out.hidden), arrays[f"{prefix}verify_logits"], LOGITS)
        cache = append(cache, out.k, out.v, jnp.array([int(arrays[f"{prefix}accepted"]) + 1]))
