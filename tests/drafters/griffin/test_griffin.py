"""GRIFFIN in the decode loop: any builder, temperature and batch; what feeds what."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pair_toys as toys
import pytest

from jaxspec.adapt.actions import select_leaves
from jaxspec.core.config import TargetConfig
from jaxspec.drafters.base import Nodes, TargetHead
from jaxspec.drafters.griffin.drafter import make_griffin_drafter
from jaxspec.drafters.griffin.network import GriffinConfig, GriffinDrafter

TARGET = TargetConfig(
    vocab_size=toys.VOCAB, max_positions=256, qk_norm=False, **toys.SIZES | {"num_layers": 3}
)
CONFIG = GriffinConfig(**toys.SIZES, **toys.OF_TARGET | {"feature_layers": (3,)}, depth=4)
HEAD = TargetHead(toys.TARGET.embed, lambda hidden: hidden @ toys.EMBEDDING.T)


def init(config, seed):
    one, none = jnp.zeros((1, 1, config.hidden_size)), jnp.zeros((1, 1), jnp.int32)
    return GriffinDrafter(config).init(jax.random.key(seed), one, one, none)


@pytest.fixture(scope="module")
def variables():
    return toys.variables_of(init, CONFIG)


@pytest.mark.parametrize(
    "options",
    [
        dict(builder="dynamic/w4", budget=14),
        pytest.param(dict(builder="lattice", budget=12, temperature=1.0), marks=pytest.mark.slow),
        pytest.param(
            dict(builder="chain", budget=5, coupled=True, temperature=0.8), marks=pytest.mark.slow
        ),
    ],
)
def test_the_text_is_the_targets(variables, options):
    params = toys.bundle_of("griffin", CONFIG, variables, TARGET)
    toys.check_text(params, "griffin", **options)


def test_a_node_reads_what_its_parent_regressed(variables):
    """`regress` is fed back and `predict` projected: never the other way round."""
    drafter, model = make_griffin_drafter(CONFIG), GriffinDrafter(CONFIG)
    features = jnp.asarray(toys.FEATURES[..., : toys.WIDTH])
    rows, root = np.arange(8), jnp.asarray(toys.TOKENS[:, 8])
    new = toys.Committed(
        toys.TOKENS[:, rows],
        toys.TOKENS[:, rows + 1],
        features[:, rows],
        jnp.zeros(2, jnp.int32),
        jnp.full(2, 8),
    )
    state = drafter.absorb(variables, drafter.init(2, 32, jnp.float32), HEAD, new)
    proposal, scratch = drafter.start(variables, state, HEAD, root, 2)
    token, zero = proposal.logits[:, :, 0].argmax(-1), jnp.zeros((2, 1), jnp.int32)
    nodes = Nodes(token, zero, zero + 1, zero, zero == 0)
    second, _ = drafter.expand(variables, state, scratch, HEAD, nodes, jnp.int32(1))

    embedded = toys.EMBEDDING[toys.TOKENS[:, rows + 1]]
    places = jnp.broadcast_to(jnp.arange(9), (2, 9))
    (predict, regress), _ = model.apply(variables, embedded, features[:, :8], places[:, :8])
    np.testing.assert_allclose(
        proposal.logits[:, 0, 0], predict[:, -1] @ toys.EMBEDDING.T, atol=1e-4
    )
    longer = jnp.concatenate([features[:, :8], regress[:, -1:]], axis=1)
    embedded = jnp.concatenate([embedded, toys.EMBEDDING[token]], axis=1)
    (predict, _), _ = model.apply(variables, embedded, longer, places)
    np.testing.assert_allclose(second.logits[:, 0, 0], predict[:, -1] @ toys.EMBEDDING.T, atol=1e-4)
    np.testing.assert_allclose(second.hidden[:, 0, 0], predict[:, -1], atol=1e-5)


def test_one_norm_serves_both_halves_of_the_fusion(variables):
    """By hand: the linear part is normalised twice, the embedding once, by the same weight."""
    own = variables["params"]["fusion"]
    random = np.random.default_rng(0)
    token, feature = random.normal(size=(2, toys.WIDTH)).astype(np.float32)

    def norm(x, scale):
        return x / np.sqrt((x**2).mean() + CONFIG.norm_eps) * np.asarray(scale)

    linear = np.concatenate([token, feature]) @ own["fc"]["kernel"] + own["fc"]["bias"]
    shared = own["input_norm"]["scale"]
    inner = np.concatenate([norm(norm(linear, own["norm"]["scale"]), shared), norm(token, shared)])
    inner = inner @ own["up"]["kernel"]
    wanted = linear + inner / (1 + np.exp(-inner)) @ own["down"]["kernel"]
    found = GriffinDrafter(CONFIG).apply(variables, token, feature, method="fuse")
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_the_head_that_adapts_is_the_layer(variables):
    chosen = {path[0] for path in select_leaves(variables["params"], "head")}
    assert chosen == {"attention", "mlp_norm", "mlp"}
    assert {path[0] for path in select_leaves(variables["params"], "full")} == chosen | {"fusion"}


def test_more_layers_are_refused():
    with pytest.raises(ValueError, match="num_layers is 2: GRIFFIN has one layer"):
        make_griffin_drafter(dataclasses.replace(CONFIG, num_layers=2))
