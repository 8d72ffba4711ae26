"""Every node of a tree proposes what the network says of its own branch, in any layout of blocks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pair_toys import EMBEDDING, VOCAB, absorb
from pair_toys import TARGET as LOOKUP

from jaxspec.core.state import Nodes
from jaxspec.drafters.base import TargetHead
from jaxspec.drafters.dspark.drafter import resize
from jaxspec.drafters.dspark.network import HEADS, DSpark, DSparkConfig
from jaxspec.drafters.dspark.shapes import init_variables
from jaxspec.drafters.registry import make_drafter

CONFIG = DSparkConfig(
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    ffn_size=24,
    feature_layers=(0, 1, 2),
    target_hidden_size=16,
    vocab_size=VOCAB,
    block_size=4,
    mask_token_id=5,
    markov_rank=6,
)
HEAD = TargetHead(LOOKUP.embed, lambda hidden: hidden @ EMBEDDING.T)
CONFIGS = {head: dataclasses.replace(CONFIG, markov_head=head) for head in HEADS}
CONFIGS["causal"] = dataclasses.replace(CONFIG, causal=True, sample_from_anchor=False)
CONFIGS["few tokens"] = dataclasses.replace(
    CONFIG, draft_vocab_size=12, markov_head="rnn", confidence_with_markov=False
)
ROOT = jnp.array([7, 30])
# Two nodes of depth 1, then a child of the second, of the first and of the second again: tokens and
# the slots that proposed them.
LEVELS = [([3, 9], [0, 0]), ([4, 11, 20], [2, 1, 2])]
BRANCHES = [[3], [9], [9, 4], [3, 11], [9, 20]]


def variables_of(config):
    generator = np.random.default_rng(2)

    def fill(leaf):
        if jnp.issubdtype(leaf.dtype, jnp.integer):
            return jnp.arange(1, 1 + 3 * leaf.size, 3, dtype=jnp.int32)
        return jnp.asarray(generator.normal(scale=0.5, size=leaf.shape), jnp.float32)

    return jax.tree.map(fill, jax.eval_shape(lambda: init_variables(config)))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.thorough
def test_nodes_are_conditioned_on_their_branch(name):
    config = CONFIGS[name]
    variables, bundle = variables_of(config), make_drafter(config)
    state = absorb(bundle, variables, [6, 3])
    proposal, scratch = bundle.start(variables, state, HEAD, ROOT, 1 + 2 * 3)
    proposals, first = [proposal], 1
    for depth, (tokens, source) in enumerate(LEVELS, start=1):
        tokens, source = (jnp.array([part] * 2, jnp.int32) for part in (tokens, source))
        node = Nodes(tokens, source, jnp.full_like(tokens, depth), source, source >= 0)
        proposal, scratch = bundle.expand(variables, state, scratch, HEAD, node, jnp.int32(first))
        proposals.append(proposal)
        first += tokens.shape[1]

    module = DSpark(config)
    block = jnp.full((2, config.block_size), config.mask_token_id).at[:, 0].set(ROOT)
    positions = state.length[:, None] + jnp.arange(config.block_size)
    hidden = module.apply(variables, HEAD.embed(block), positions, state)[:, config.first_slot :]
    found = [(part, node) for part in proposals for node in range(part.logits.shape[1])]
    for branch, (part, node) in zip([[], *BRANCHES], found, strict=True):
        previous = jnp.array([[int(root), *branch] for root in ROOT])
        slots = hidden[:, : previous.shape[1]]
        bias = module.apply(variables, previous, slots, method="block_bias")[:, -1]
        if config.draft_vocab_size is None:
            expected = HEAD.unembed(slots[:, -1]) + bias
        else:
            own = slots[:, -1] @ variables["draft"]["lm_head"] + bias
            expected = np.full((2, VOCAB), -np.inf, np.float32)
            expected[:, variables["draft"]["ids"]] = own
        np.testing.assert_allclose(part.logits[:, node, 0], expected, atol=2e-5)
        np.testing.assert_allclose(part.hidden[:, node, 0], slots[:, -1], atol=1e-6)
        judged = module.apply(variables, previous, slots, method="confidence")[:, -1]
        np.testing.assert_allclose(part.confidence[:, node, 0], judged, atol=2e-5)


@pytest.mark.parametrize("few", [False, True], ids=["all tokens", "few tokens"])
@pytest.mark.parametrize("head", ["vanilla", "gated"])
@pytest.mark.thorough
def test_what_is_foreseen_is_what_nodes_propose(head, few):
    """The logits of pairs of tokens, from `look_ahead`, are those of the nodes that `expand` takes."""
    config = dataclasses.replace(CONFIGS[head], draft_vocab_size=12 if few else None)
    variables, bundle = variables_of(config), make_drafter(config)
    state = absorb(bundle, variables, [6, 3])
    _, scratch = bundle.start(variables, state, HEAD, ROOT, 8)
    look = bundle.look_ahead(variables, scratch)
    previous = jnp.array([[[3, 9], [4, 20]], [[9, 1], [30, 2]]])  # of depths 1 and 2
    following = jnp.array([[[1, 4, 31], [7, 34, 10]], [[13, 4, 1], [7, 10, 22]]])
    between = look.between(previous, following)
    for depth in (1, 2):
        token = previous[:, depth - 1]
        node = Nodes(token, 0 * token, jnp.full_like(token, depth), token, token >= 0)
        proposal, _ = bundle.expand(variables, state, scratch, HEAD, node, jnp.int32(1))
        at = following[:, depth - 1][:, None]
        expected = jnp.take_along_axis(proposal.logits[:, :, 0], at, axis=-1)
        base = jnp.take_along_axis(look.logits[:, depth][:, None], at, axis=-1)
        assert jnp.isfinite(expected).all()
        np.testing.assert_allclose(base + between[:, depth - 1], expected, atol=2e-5)


@pytest.mark.parametrize("changed", [{"markov_head": "rnn"}, {"markov_rank": 0}], ids=str)
def test_other_heads_foresee_nothing(changed):
    config = dataclasses.replace(CONFIG, confidence_with_markov=False, **changed)
    assert make_drafter(config).look_ahead is None


def test_a_shorter_depth_stops_in_the_same_block():
    """Slots of a causal block do not see later ones, which are therefore not computed."""
    assert resize(CONFIG, 2) == CONFIG and resize(CONFIG, 6).block_size == 6
    assert resize(CONFIGS["causal"], 2).block_size == 3 == resize(CONFIGS["causal"], 2).depth + 1
