"""ParallelSpec's bundle: what it keeps between rounds, and that a draft is what the training
forward gives at that anchor.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pair_toys as toys
import pytest

from jaxspec.builders import static
from jaxspec.core.config import TargetConfig
from jaxspec.drafters.parallelspec.drafter import make_parallelspec_drafter
from jaxspec.drafters.parallelspec.network import ParallelSpec, ParallelSpecConfig
from training.drafters.parallelspec import draft_hidden, init_parallelspec

CONFIG = ParallelSpecConfig(**toys.SIZES, **toys.OF_TARGET, slots=3, draft_vocab_size=20)
IDS = jnp.arange(1, 21)


@pytest.fixture(scope="module")
def drafted():
    """The bundle, its variables and what it proposes after 10 pairs."""
    drafter = make_parallelspec_drafter(CONFIG)
    variables = toys.variables_of(init_parallelspec, CONFIG) | {"draft": {"ids": IDS}}
    start = jax.jit(
        lambda state: (
            drafter.start(variables, state, toys.TARGET, jnp.asarray(toys.TOKENS[:, 10]), 3)[
                0
            ].logits
        )
    )
    return variables, {
        split: start(toys.absorb(drafter, variables, split)) for split in ((10,), (7, 0, 3))
    }


def test_rounds_and_garbage_rows_change_nothing(drafted):
    one, other = drafted[1].values()
    assert one.shape == (2, 1, 3, toys.VOCAB)
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_draft_is_the_training_forward_at_its_anchor(drafted):
    variables, proposals = drafted
    positions = np.broadcast_to(np.arange(toys.LENGTH, dtype=np.int32), (2, toys.LENGTH))
    batch = {"tokens": toys.TOKENS, "positions": positions, "anchors": np.array([[4, 10]] * 2)}
    weights = {"params": variables["params"]}
    hidden = jax.jit(
        lambda: draft_hidden(CONFIG, weights, toys.EMBEDDING, batch, toys.FEATURES, 1)
    )()
    logits = ParallelSpec(CONFIG).apply(weights, hidden[:, 1], method="logits")
    proposal = proposals[10,]
    np.testing.assert_allclose(proposal[:, 0][..., IDS], logits, atol=1e-5)
    assert np.isneginf(np.delete(proposal, IDS, axis=-1)).all()


def test_one_layer():
    with pytest.raises(
        ValueError,
        match="num_layers is 2: a ParallelSpec drafter has one layer; change its width with ffn",
    ):
        make_parallelspec_drafter(dataclasses.replace(CONFIG, num_layers=2))


@pytest.fixture(scope="module")
def params():
    target = TargetConfig(**toys.SIZES | {"num_layers": 3}, vocab_size=toys.VOCAB)
    config = dataclasses.replace(CONFIG, draft_vocab_size=30)
    variables = toys.variables_of(init_parallelspec, config) | {"draft": {"ids": jnp.arange(2, 32)}}
    return toys.bundle_of("parallelspec", config, variables, target)


@pytest.mark.slow
def test_text_is_the_targets(params):
    accepted = toys.check_text(params, "parallelspec", builder=static(toys.PATHS))
    assert accepted[2:].sum() > accepted[1]


@pytest.mark.slow
@pytest.mark.parametrize("options", [dict(budget=6), dict(builder="chain", budget=4)])
def test_text_is_the_targets_with_every_builder(params, options):
    toys.check_text(params, "parallelspec", **options)
    toys.check_text(params, "parallelspec", temperature=1.0, **options)
