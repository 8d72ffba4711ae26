"""Rejection sampling of a chain with given uniform draws, against DeepSpec's own code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays

from jaxspec.acceptance.rejection import choose_by_rejection, walk_rejection
from jaxspec.builders.trees.chain import build_chain
from jaxspec.core.sampling.settings import make_sampling

GOLDEN = arrays("dspark", "verify_sampling.npz")


@pytest.mark.parametrize("case", range(len(GOLDEN["accepted"])))
@pytest.mark.parametrize("rule", [walk_rejection, choose_by_rejection])
def test_given_draws_accept_what_deepspec_accepts(rule, case):
    tokens = GOLDEN["draft_tokens"][case]
    depth = len(tokens)
    rows = jnp.arange(depth + 1)
    zeros = jnp.zeros((depth, 1))
    tree = build_chain(jnp.asarray(tokens)[:, None], zeros, jnp.int32(0), depth, depth + 1)
    spec, values = make_sampling(float(GOLDEN["temperature"]))
    logprob = jax.nn.log_softmax(GOLDEN["draft_logits"][case] / GOLDEN["temperature"])
    draws = jnp.concatenate([jnp.zeros(1), GOLDEN["uniforms"][case]])
    accepted, left = rule(
        tree,
        jnp.asarray(GOLDEN["target_logits"][case]),
        draws,
        logprob,
        jnp.minimum(rows, depth - 1),
        spec=spec,
        values=values,
        longest=depth,
        siblings=1,
    )
    assert int(accepted.count) - 1 == GOLDEN["accepted"][case]
    np.testing.assert_allclose(left, GOLDEN["next_token_dist"][case], atol=1e-6)
