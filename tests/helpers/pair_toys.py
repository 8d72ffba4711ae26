"""A text with random features and a random target's embedding, for drafters of pairs, and their
bundles fed with it.
"""

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.core.params import Params, Spec
from jaxspec.drafters.base import Committed, TargetHead
from jaxspec.targets.transformer import Transformer

WIDTH, VOCAB, LENGTH = 16, 37, 20
SIZES = dict(hidden_size=WIDTH, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, ffn_size=24)
OF_TARGET = dict(feature_layers=(0, 1, 2), target_hidden_size=WIDTH, vocab_size=VOCAB)

_random = np.random.default_rng(0)
TOKENS = _random.integers(0, VOCAB, (2, LENGTH)).astype(np.int32)
FEATURES = _random.normal(size=(2, LENGTH, 3 * WIDTH)).astype(np.float32)
EMBEDDING = jnp.asarray(_random.normal(size=(VOCAB, WIDTH)), jnp.float32)
TARGET = TargetHead(lambda tokens: jnp.take(EMBEDDING, tokens, axis=0), None)


def variables_of(init, config):
    """Random variables of a drafter, without compiling its initialisation."""
    generator = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda: init(config, 0))
    return jax.tree.map(
        lambda leaf: jnp.asarray(generator.normal(scale=0.2, size=leaf.shape), jnp.float32), shapes
    )


def absorb(drafter, variables, counts, rows=10):
    """The state after as many pairs as `counts` says, part by part, each with garbage up to `rows`
    rows behind them.
    """
    absorb_rows = jax.jit(lambda state, new: drafter.absorb(variables, state, TARGET, new))
    state, at = drafter.init(2, 48, jnp.float32), 0
    for count in counts:
        index = np.minimum(at + np.arange(rows), LENGTH - 2)
        place, kept = (jnp.full(2, number, jnp.int32) for number in (at, count))
        new = Committed(TOKENS[:, index], TOKENS[:, index + 1], FEATURES[:, index], place, kept)
        state, at = absorb_rows(state, new), at + count
    return state


# So wide that drafts of random weights are accepted, over three levels and more than one block of
# two.
PATHS = (
    [[r] for r in range(30)]
    + [[r, s] for r in range(4) for s in range(30)]
    + [[0, s, t] for s in range(3) for t in range(30)]
)


def check_text(params, method, **options):
    """The text is the target's own, whatever was drafted; returns how often rounds committed 0, 1,
    2, … tokens.
    """
    more = {name: value for name, value in options.items() if name == "temperature"}
    prompts = [[4, 9, 2, 30], [7]]
    drafted, plain = (
        jaxspec.decode(params, prompts, max_new_tokens=12, drafter=one, **group_options(**given))
        for one, given in ((method, options), ("ar", more))
    )
    assert [out.tokens for out in drafted] == [out.tokens for out in plain]
    return np.sum([out.stats.accept_hist for out in drafted], axis=0)


def bundle_of(name, config, variables, target):
    """A random target of `TargetConfig` with the drafter, for `jaxspec.decode`."""
    tokens = jnp.zeros((1, 2), jnp.int32)
    params = jax.jit(Transformer(target).init)(jax.random.key(5), tokens, tokens)
    # Random weights of this size repeat a token for ever; steeper logits vary the text.
    params = jax.tree.map(lambda leaf: 12 * leaf if leaf.ndim > 1 else leaf, params)
    return Params(params, {name: variables}, Spec(target, ((name, config),)))
