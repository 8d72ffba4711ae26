"""GRIFFIN's network and drafter against the authors' own code: a forward pass, and two successive
tree builds.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays, golden
from griffin_golden import load_griffin

from jaxspec.drafters.base import Committed, Nodes, TargetHead
from jaxspec.drafters.griffin.network import GriffinDrafter
from jaxspec.drafters.registry import make_drafter
from jaxspec.targets.transformer import Transformer

TOLERANCE = 5e-6

golden("griffin")
FORWARD, INFER = arrays("griffin", "forward.npz"), arrays("griffin", "infer.npz")


def close(found, wanted):
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=0, atol=TOLERANCE)


@pytest.fixture(scope="module")
def params():
    return load_griffin()


@pytest.fixture(scope="module")
def unembed(params):
    model = Transformer(params.spec.target)
    return jax.jit(lambda hidden: model.apply(params.target, hidden, method="logits"))


def test_the_targets_features_are_those_after_its_final_norm(params, unembed):
    config, ids = params.spec.drafter("griffin"), FORWARD["ids"]
    assert config.feature_layers == (params.spec.target.num_layers,)
    place = jnp.arange(ids.shape[1])[None]
    model = Transformer(params.spec.target)
    out = model.apply(params.target, ids, place, feature_layers=config.feature_layers)
    close(out.features, FORWARD["features"])
    close(unembed(out.features), FORWARD["target_logits"])


def test_every_part_of_a_forward_pass(params, unembed):
    model, weights = GriffinDrafter(params.spec.drafter("griffin")), params.drafter("griffin")
    tokens = params.target["params"]["embedding"][FORWARD["ids"][:, 1:]]
    features = jnp.asarray(FORWARD["features"][:, :-1])
    places = jnp.arange(features.shape[1])[None]

    def parts(model):
        linear, added = model.fusion.parts(tokens, features)
        x = linear + added
        q, k, v = model.project(x, places)
        del q
        attended = model.attention(x, *rope_of(model, places), places, None, None)[0]
        return linear, added, x, attended, model.mlp(model.mlp_norm(x + attended)), k, v

    found = jax.jit(lambda: model.apply(weights, method=parts))()
    names = ("fusion_linear", "fusion_mlp", "fused", "attn_out", "mlp_out")
    for name, array in zip(names, found, strict=False):
        close(array, FORWARD[name])
    (predict, regress), (k, v) = jax.jit(lambda: model.apply(weights, tokens, features, places))()
    close(predict, FORWARD["predict"])
    close(regress, FORWARD["regress"])
    for pair in ((k, v), found[5:]):
        for array, name in zip(pair, ("cache_k", "cache_v"), strict=True):
            close(jnp.swapaxes(array, 1, 2), FORWARD[name])
    close(unembed(predict), FORWARD["logits"])


def rope_of(model, places):
    from jaxspec.targets.rope import rope_table

    return (rope_table(places, model.config),)


class Build:
    """The drafter's functions, compiled once for the sizes of the recorded builds."""

    def __init__(self, params):
        config, variables = params.spec.drafter("griffin"), params.drafter("griffin")
        model = Transformer(params.spec.target)
        head = TargetHead(
            lambda tokens: params.target["params"]["embedding"][tokens],
            lambda hidden: model.apply(params.target, hidden, method="logits"),
        )
        self.drafter = make_drafter(config)
        self.steps, self.width = int(INFER["depth"]), int(INFER["top_k"])
        self.rows = INFER["it0_call0_tokens"].shape[1]
        self.second = INFER["it1_call0_tokens"].shape[1]
        self.absorb = jax.jit(lambda state, new: self.drafter.absorb(variables, state, head, new))
        root, rows = jnp.zeros(1, jnp.int32), 1 + self.steps * self.width
        self.start = jax.jit(lambda state: self.drafter.start(variables, state, head, root, rows))
        self.expand = jax.jit(
            lambda *given: self.drafter.expand(variables, *given[:2], head, *given[2:])
        )

    def fresh(self):
        return self.drafter.init(1, INFER["ids"].shape[1] + self.rows, jnp.float32)

    def committed(self, first, count):
        """Pairs `first` to `first + count`, with garbage behind them."""
        most = max(self.rows, self.second)
        rows = np.minimum(first + np.arange(most), INFER["ids"].shape[1] - 2)
        tokens, features = INFER["ids"], INFER["features"]
        at = (jnp.array([first]), jnp.array([count]))
        return Committed(tokens[:, rows], tokens[:, rows + 1], features[:, rows], *at)

    def check(self, name, state):
        """One round: the root's proposal, then every recorded level."""
        pairs = int(state.cache.length[0])
        first = {key: INFER[f"{name}_call0_{key}"] for key in ("predict", "regress", "logits")}
        close(state.predict, first["predict"][:, -1])
        close(state.regress, first["regress"][:, -1])
        for held, wanted in ((*state.cache.k, "stable_k"), (*state.cache.v, "stable_v")):
            close(held[0, :, :, :pairs], INFER[f"{name}_{wanted}"])
        proposal, scratch = self.start(state)
        close(proposal.logits[:, :, 0], first["logits"][:, -1:])
        assert int(INFER[f"{name}_ncalls"]) == 1 + self.steps
        for step in range(1, 1 + self.steps):
            keys = ("tokens", "pos", "hidden_in", "tree_mask", "predict", "regress", "logits")
            call = {key: INFER[f"{name}_call{step}_{key}"] for key in keys}
            nodes = self.nodes(call, step, pairs)
            close(scratch.hidden[:, nodes.source[0]], call["hidden_in"])
            row = 1 + (step - 1) * self.width
            proposal, scratch = self.expand(state, scratch, nodes, jnp.asarray(row))
            own = slice(row, row + self.width)
            seen = scratch.visible[0, own, 1 : row + self.width]
            np.testing.assert_array_equal(seen, call["tree_mask"][0, 0].astype(bool))
            close(scratch.hidden[:, own], call["regress"])
            close(proposal.hidden[:, :, 0], call["predict"])
            close(proposal.logits[:, :, 0], call["logits"])

    def nodes(self, call, step, pairs):
        """The nodes of a recorded level, whose parents the mask tells."""
        source, before = np.zeros((1, self.width)), self.width * (step - 2)
        if step > 1:
            above = call["tree_mask"][0, 0, :, before : before + self.width]
            source = 1 + before + above.argmax(-1)[None]
        depth = call["pos"][None] - pairs + 1
        assert (depth == step).all()
        fields = (jnp.asarray(x, jnp.int32) for x in (call["tokens"], source, depth, source))
        return Nodes(*fields, jnp.ones((1, self.width), bool))


@pytest.fixture(scope="module")
def build(params):
    return Build(params)


def test_two_successive_builds(build):
    state = build.absorb(build.fresh(), build.committed(0, build.rows))
    build.check("it0", state)
    state = build.absorb(state, build.committed(build.rows, build.second))
    build.check("it1", state)


def test_nothing_committed_changes_nothing(build):
    state = build.absorb(build.fresh(), build.committed(0, build.rows))
    again = build.absorb(state, build.committed(build.rows, 0))
    np.testing.assert_array_equal(again.predict, state.predict)
    build.check("it0", again)
