"""Committed rounds are drafted again as drafters were trained: Falcon, block after block."""

import jax
import jax.numpy as jnp
import numpy as np
import pair_toys as toys

from jaxspec.adapt.redraft import redraft
from jaxspec.adapt.segments import Segments
from jaxspec.drafters.falcon.config import FalconConfig
from jaxspec.drafters.falcon.drafter import make_falcon_drafter
from training.falcon_loss import init_falcon, make_chains

SLOTS, BLOCKS, ROOTS = 3, 2, (3, 8)
CONFIG = FalconConfig(
    **toys.SIZES, **toys.OF_TARGET, slots=SLOTS, blocks=BLOCKS, lstm_size=6, lstm_layers=1
)
ROWS = toys.LENGTH - 1


def cut_text(tokens, depths):
    """Two segments whose rounds begin at `ROOTS` and commit what lies between, and an empty round."""
    none = jnp.zeros((2, 3, depths))
    row = jnp.zeros((2, ROWS, 1))
    begin, count = jnp.array([[*ROOTS, 0]] * 2), jnp.array([[ROOTS[1] - ROOTS[0], 4, 0]] * 2)
    return Segments(
        token=jnp.asarray(tokens),
        features=jnp.asarray(toys.FEATURES[:, :ROWS]),
        logprob=row,
        ids=row.astype(jnp.int32),
        tail=row[..., 0],
        begin=begin.astype(jnp.int32),
        count=count.astype(jnp.int32),
        reject=none,
        weight=none,
        held=none,
    )


def test_falcon_rounds_are_those_of_training():
    """Blocks after each root, along the text's own tokens."""
    variables, drafter = toys.variables_of(init_falcon, CONFIG), make_falcon_drafter(CONFIG)
    depths = SLOTS * BLOCKS - 1  # the last block is cut
    positions = np.broadcast_to(np.arange(toys.LENGTH, dtype=np.int32), (2, toys.LENGTH))
    batch = {"tokens": toys.TOKENS, "positions": positions, "anchors": np.array([ROOTS] * 2)}
    hidden_of = make_chains(CONFIG, variables, toys.EMBEDDING, batch, toys.FEATURES)
    hidden = jax.jit(lambda: hidden_of(jnp.zeros((2, 2, SLOTS), bool), BLOCKS))()
    wanted = (hidden @ variables["params"]["lm_head"]).reshape(2, 2, SLOTS * BLOCKS, toys.VOCAB)

    @jax.jit
    def draft():
        segments, context = cut_text(toys.TOKENS, depths), ROOTS[0] + 1
        return redraft(
            drafter, (variables,), toys.TARGET, segments, context, lambda q, said: said[0][0]
        )

    found = draft()
    assert found.shape == (3, 2, depths, toys.VOCAB)
    np.testing.assert_allclose(found[:2].swapaxes(0, 1), wanted[:, :, :-1], atol=1e-5)
    assert not found[2].any()  # a round that does not exist
