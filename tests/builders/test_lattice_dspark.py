"""Lattice trees of DSpark's drafters: every node is scored by the tokens of its own branch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import golden, records
from short_models import shorten
from slow_cases import slow_except

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.drafters.base import Committed, TargetHead
from jaxspec.drafters.dspark.network import DSpark
from jaxspec.drafters.registry import make_drafter
from jaxspec.targets.transformer import Transformer

KINDS = ("vanilla", "gated", "rnn")
BUDGET, SCALE = 64, 0.1  # so that trees are deep


@functools.cache
def load(kind):
    target, drafter = golden("dspark", "target"), golden("dspark", f"draft_{kind}")
    return shorten(jaxspec.load(target, drafter={"dspark": drafter}, dtype="float32"))


def prompt():
    return max((trace["prompt"] for trace in records("dspark", "decode.json")), key=len)


@functools.cache
def block(kind, tokens):
    """Hidden states [1, K, E] and base logits [K, V] of the block after `tokens`, whose last one is
    the anchor; one forward of the network, outside of the engine.
    """
    params = load(kind)
    spec, config = params.spec, params.spec.drafter("dspark")
    target = functools.partial(Transformer(spec.target).apply, params.target)
    head = TargetHead(*(functools.partial(target, method=name) for name in ("embed", "logits")))
    text = jnp.asarray(tokens)[None, :-1]
    features = target(text, jnp.arange(text.shape[1])[None], feature_layers=config.feature_layers)
    bundle, variables = make_drafter(config), params.drafters["dspark"]
    zero = jnp.zeros(1, jnp.int32)
    state = bundle.absorb(
        variables,
        bundle.init(1, text.shape[1], jnp.float32),
        head,
        Committed(text, text, features.features, zero, zero + text.shape[1]),
    )
    ids = np.full((1, config.block_size), config.mask_token_id)
    ids[0, 0] = tokens[-1]
    positions = state.length[:, None] + jnp.arange(config.block_size)
    hidden = DSpark(config).apply(variables, head.embed(ids), positions, state)
    return hidden, head.unembed(hidden)[0]


def score_path(kind, tokens, path):
    """The log-probability of a path, from the head's form for blocks whose tokens are known."""
    params = load(kind)
    config, variables = params.spec.drafter("dspark"), params.drafters["dspark"]
    hidden, base = block(kind, tokens)
    before = jnp.asarray([[tokens[-1], *path[:-1]]])
    bias = DSpark(config).apply(variables, before, hidden[:, : len(path)], method="block_bias")
    logits = (base[: len(path)] + bias[0]) / SCALE
    return float(jax.nn.log_softmax(logits)[np.arange(len(path)), np.asarray(path)].sum())


def trees(kind, builder, **options):
    options |= dict(builder=builder, budget=BUDGET, score_temperature=SCALE, trace=True)
    return jaxspec.decode(load(kind), prompt(), drafter="dspark", **group_options(**options))


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow_except(["rnn"], KINDS))
def test_paths_have_the_scores_of_their_branches(kind):
    out = trees(kind, "lattice", max_new_tokens=6)
    tree = out.rounds[0].tree
    paths = [()]
    for parent, token in zip(tree.parent[1:], tree.token[1:], strict=True):
        paths.append((*paths[parent], int(token)))
    assert len(paths) == BUDGET
    assert len({path[:-1] for path in paths if len(path) > 2}) > 1, "deep nodes on one branch only"
    # A first round drafts after the prompt and the token that the prefill gave.
    tokens = (*prompt(), out.tokens[0])
    expected = [score_path(kind, tokens, path) for path in paths[1:]]
    np.testing.assert_allclose(tree.logprob[1:], expected, atol=1e-3)
    # Of the children of the root, none but the last is left out before the tree's last node.
    hidden, base = block(kind, tokens)
    config, variables = load(kind).spec.drafter("dspark"), load(kind).drafters["dspark"]
    before = jnp.asarray([[tokens[-1]]])
    bias = DSpark(config).apply(variables, before, hidden[:, :1], method="block_bias")[0, 0]
    first = np.asarray(jax.nn.log_softmax((base[0] + bias) / SCALE))
    inside = {path[0] for path in paths[1:] if len(path) == 1}
    certain, possible = (
        set(np.flatnonzero(first > tree.logprob[-1] + off).tolist()) for off in (1e-3, -1e-3)
    )
    assert certain <= inside <= possible


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, pytest.param(1.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind", ["rnn", *(pytest.param(k, marks=pytest.mark.slow) for k in KINDS[:2])]
)
def test_the_text_is_the_targets_in_no_more_rounds_than_a_chains(kind, temperature):
    options = {"max_new_tokens": 24, "temperature": temperature, "seed": 5}
    plain = jaxspec.decode(load(kind), prompt(), drafter="ar", **group_options(**options))
    out, chain = (trees(kind, builder, **options) for builder in ("lattice", "chain"))
    assert out.tokens == chain.tokens == plain.tokens
    assert out.stats.rounds <= chain.stats.rounds
