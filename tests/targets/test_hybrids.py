"""Gated delta nets: trees in one pass against each path alone, states after accepted paths, and
decodes that must give the text of single rows.
"""

from __future__ import annotations

import functools

import golden_data
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.cache import allocate, append, gather_path
from jaxspec.core.recurrent import advance
from jaxspec.targets.delta_net import run_blocks
from jaxspec.targets.transformer import Transformer
from pallas_kernels import delta_rule

TOLERANCE, STATES = 3e-3, 1e-4  # see the set's README


def draw_rows(seed, count, batch=2, alike=0.0, key_heads=2, heads=6, key_dim=5, value_dim=7):
    """Arguments of the delta rule, and a state; `alike`: the cosine between keys."""
    random = np.random.default_rng(seed)

    def unit(shape):
        x = random.standard_normal(shape)
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    common = unit((batch, 1, key_heads, key_dim)) * alike**0.5
    q = unit((batch, count, key_heads, key_dim)) * key_dim**-0.5
    k = common + unit((batch, count, key_heads, key_dim)) * (1 - alike) ** 0.5
    v = random.standard_normal((batch, count, heads, value_dim))
    beta = random.uniform(0, 1, (batch, count, heads))
    decay = -np.exp(random.uniform(-6, 1.5, (batch, count, heads)))
    s = random.standard_normal((batch, heads, key_dim, value_dim))
    k = k / np.linalg.norm(k, axis=-1, keepdims=True)
    return [x.astype(np.float32) for x in (q, k, v, beta, decay, s)]


def step(q, k, v, beta, decay, s):
    """One row of the recurrence, in float64: (what it reads, u, the state after it)."""
    q, k = (np.repeat(x, v.shape[1] // x.shape[1], axis=1).astype(np.float64) for x in (q, k))
    s = np.exp(np.float64(decay))[..., None, None] * s
    u = beta[..., None] * (v - np.einsum("bhdv,bhd->bhv", s, k))
    s = s + k[..., None] * u[..., None, :]
    return np.einsum("bhdv,bhd->bhv", s, q), u, s


def draw_parents(seed, count):
    random = np.random.default_rng(seed)
    return np.array([-1, *(int(random.integers(max(i - 5, 0), i)) for i in range(1, count))])


def see(parent):
    """bool [N, N]: which rows are a row's ancestors, or itself."""
    seen = np.eye(len(parent), dtype=bool)
    for i, above in enumerate(parent):
        if above >= 0:
            seen[i] |= seen[above]
    return seen


def words_of(parent):
    seen = see(parent)
    padded = np.pad(seen, [(0, 0), (0, -len(parent) % 32)])
    return np.packbits(padded, axis=-1, bitorder="little").view("<u4").astype(np.uint32)


@pytest.mark.parametrize("solve", ["substitution", "by depth"])
def test_a_tree_reads_what_each_path_reads_alone(solve, monkeypatch):
    if solve == "by depth":  # what other devices than CPUs do
        monkeypatch.setattr(delta_rule, "solve_tree", delta_rule.solve_by_depth)
    *rows, s = draw_rows(0, 24)
    parent = np.stack([draw_parents(1, 24), np.arange(-1, 23)])
    seen = np.stack([see(one) for one in parent])
    depth = seen.sum(-1) - 1
    read, u = jax.jit(delta_rule.delta_rule)(*rows, s, seen, depth)
    states = [np.float64(s)]
    for i in range(24):
        before = np.stack([states[parent[b, i] + 1][b] for b in range(2)])
        wanted = step(*(x[:, i] for x in rows), before)
        np.testing.assert_allclose(read[:, i], wanted[0], atol=1e-5)
        np.testing.assert_allclose(u[:, i], wanted[1], atol=1e-5)
        states.append(wanted[2])


@pytest.mark.parametrize("solve", [delta_rule.solve_chain, delta_rule.solve_by_depth])
def test_keys_that_are_alike_lose_no_digits(solve):
    """Of 64 such keys in a row, nilpotent doubling makes numbers of 1e10."""
    count, random = 64, np.random.default_rng(0)
    k = draw_rows(0, count, 1, alike=0.99, key_dim=64)[1][0, :, 0]
    low = np.tril(k @ k.T, -1)[None, None, None]  # all of u is written, and nothing decays
    right = random.standard_normal((1, 1, 1, count, 8)).astype(np.float32)
    true = np.linalg.solve(np.eye(count) + np.float64(low), right)
    given = (jnp.arange(count)[None],) if solve is delta_rule.solve_by_depth else ()
    found = solve(jnp.asarray(low), jnp.asarray(right), *given)
    assert np.abs(found - true).max() < 1e-5 * np.abs(true).max()


def test_blocks_of_a_prompt_and_what_is_committed_of_it():
    *rows, s = draw_rows(2, 150)
    read, u = jax.jit(run_blocks)(*rows, s)
    counts, state = np.array([0, 101]), np.float64(s)
    wanted = np.copy(state)
    for i in range(150):
        one, _, state = step(*(x[:, i] for x in rows), state)
        np.testing.assert_allclose(read[:, i], one, atol=2e-5)
        wanted[i + 1 == counts] = state[i + 1 == counts]
    after = advance(s, rows[1], u, rows[4], counts)
    np.testing.assert_array_equal(after[0], s[0])
    np.testing.assert_allclose(after[1], wanted[1], atol=1e-5)


class Model:
    """The golden set's model, with a cache that grows by chunks and by paths of trees."""

    def __init__(self):
        self.params = jaxspec.load(golden_data.golden("qwen3_5"), dtype="float32", drafter={})
        self.config = self.params.spec.target
        self.module = Transformer(self.config)
        self._keep = jax.jit(append)

    @functools.partial(jax.jit, static_argnums=0)
    def run(self, tokens, positions, cache, mask=None):
        out = self.module.apply(self.params.target, tokens, positions, cache, mask)
        return out, self.module.apply(self.params.target, out.hidden, method="logits")

    def feed(self, tokens, cache, chunk=64):
        """Cache one text, a chunk at a time; return the cache and the logits [n, V]."""
        logits = []
        for start in range(0, len(tokens), chunk):
            rows = np.zeros((1, chunk), np.int32)
            part = tokens[start : start + chunk]
            rows[0, : len(part)] = part
            out, found = self.run(rows, start + np.arange(chunk)[None], cache)
            cache = self._keep(cache, out.k, out.v, np.array([len(part)]), out.stash)
            logits.append(found[0, : len(part)])
        return cache, np.concatenate(logits)

    def verify(self, cache, tokens, parent):
        """Run a tree; return what the target computes and the logits [N, V]."""
        depth = see(parent).sum(-1) - 1
        at = cache.length[:, None] + depth
        out, logits = self.run(tokens[None], at, cache, words_of(parent)[None])
        return out, np.asarray(logits[0])

    def accept(self, cache, out, path, count):
        k, v, stash = gather_path((out.k, out.v, out.stash), jnp.asarray(path)[None])
        return self._keep(cache, k, v, np.array([count]), stash)


@pytest.fixture(scope="module")
def model():
    return Model()


@pytest.fixture(scope="module")
def expected():
    return golden_data.arrays("qwen3_5", "golden.npz")


PROMPTS = [0, *(pytest.param(i, marks=pytest.mark.thorough) for i in range(1, 6))]
CHUNKS = [64, *(pytest.param(size, marks=pytest.mark.thorough) for size in (1, 100))]
TREES = [1, *(pytest.param(i, marks=pytest.mark.thorough) for i in (0, 2, 3))]


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("number", PROMPTS)
def test_logits_of_prompts(model, expected, number, chunk):
    tokens = expected[f"prompt{number}"]
    cache = allocate(model.config, 1, 256, jnp.float32)
    _, logits = model.feed(tokens, cache, chunk)
    np.testing.assert_allclose(logits, expected[f"prompt{number}_logits"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("number", TREES)
def test_logits_of_trees_and_states_after_accepted_paths(model, expected, number):
    name = f"tree{number}_"
    parent, accepted = expected[name + "parent"], expected[name + "accepted"]
    cache, _ = model.feed(expected[name + "context"], allocate(model.config, 1, 256, jnp.float32))
    out, logits = model.verify(cache, expected[name + "token"], parent)
    np.testing.assert_allclose(logits, expected[name + "logits"], rtol=0, atol=TOLERANCE)
    after = model.accept(cache, out, accepted, len(accepted))
    conv, s = expected[name + "conv_state"], expected[name + "recurrent_state"]
    (state,) = after.recurrent
    held = state.conv.shape[2]
    wanted = conv[..., -held:].swapaxes(1, 2)
    np.testing.assert_allclose(state.conv[:, 0], wanted, rtol=0, atol=STATES)
    np.testing.assert_allclose(state.s[:, 0], s, rtol=0, atol=STATES)
    # Nothing is accepted of a sequence that is finished.
    same = model.accept(cache, out, accepted, 0)
    jax.tree.map(np.testing.assert_array_equal, same.recurrent, cache.recurrent)
