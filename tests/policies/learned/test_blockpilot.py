"""BlockPilot's network and features against recorded ones, and its answers to made-up
observations.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays

from jaxspec.policies.learned import blockpilot
from jaxspec.policies.learned.networks import residual_mlp
from jaxspec.policies.protocol import Observation

GOLDEN = arrays("blockpilot", "blockpilot.npz")


def network(number: int) -> list[dict]:
    """The recorded layers; stored as [outputs, inputs]."""
    names = [*range(int(GOLDEN[f"m{number}_n_layers"])), "o"]
    return [
        {
            "kernel": jnp.asarray(GOLDEN[f"m{number}_W{name}"].T),
            "bias": jnp.asarray(GOLDEN[f"m{number}_b{name}"]),
        }
        for name in names
    ]


def observed(logits) -> Observation:
    batch = logits.shape[0]
    return Observation(np.zeros(batch, np.int32), np.ones(batch, bool), logits=logits)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(i, marks=pytest.mark.slow if i in (2, 3) else ())
        for i in range(int(GOLDEN["m_count"]))
    ],
)
def test_forward_and_choice(number):
    layers, x = network(number), jnp.asarray(GOLDEN[f"m{number}_x"])
    expected = GOLDEN[f"m{number}_logits"]
    forward = jax.jit(residual_mlp)
    found = forward(layers, x)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    labels = np.arange(len(x)) % expected.shape[1]
    loss = np.mean(
        np.log(np.exp(found).sum(1))
        - np.take_along_axis(np.asarray(found), labels[:, None], 1)[:, 0]
    )
    assert float(loss) == pytest.approx(float(GOLDEN[f"m{number}_ce_labels_mod"]), rel=1e-5)
    half = jax.tree.map(lambda w: np.asarray(w, jnp.bfloat16), (layers, x))
    rough = np.asarray(forward(*half), np.float32)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(rough, GOLDEN[f"m{number}_logits_bf16_ref"], atol=5e-2 * scale)
    # The policy's answer for the request is the block size of the largest of them.
    first = int(GOLDEN[f"m{number}_first_candidate"])
    policy = blockpilot.make_blockpilot(
        range(first, first + expected.shape[1]), blockpilot.Predictor(layers)
    )
    functions = policy.config.functions()
    assert functions.needs == {"logits"} and functions.act.rows is None
    answer = jax.jit(functions.act.block)(policy.controls, policy.state, observed(x))
    assert answer.dtype == jnp.int32
    np.testing.assert_array_equal(answer, GOLDEN[f"m{number}_pred_block"])


def test_features():
    raw = GOLDEN["feat_raw"]
    for scale, name in (
        ("raw", "raw"),
        ("softmax", "softmax"),
        ("zscore", "zscore_guess"),
        ("l2", "l2_guess"),
    ):
        np.testing.assert_allclose(
            blockpilot.scale_logits(raw, scale), GOLDEN[f"feat_{name}"], atol=1e-6, err_msg=name
        )


def test_reductions_for_large_vocabularies():
    raw = np.random.default_rng(0).normal(size=(12, 40)).astype(np.float32)
    top = blockpilot.BlockPilotConfig(sizes=(4, 5), reduction="top", top=3)
    np.testing.assert_array_equal(
        blockpilot.blockpilot_features(top, raw), np.sort(raw, axis=1)[:, :-4:-1]
    )
    low = blockpilot.BlockPilotConfig(sizes=(4, 5), reduction="projection")
    principal = blockpilot.fit_projection(raw, 5)
    scores = np.asarray(blockpilot.blockpilot_features(low, raw, principal))
    np.testing.assert_allclose(np.cov(scores, rowvar=False), np.eye(5), atol=1e-3)
    random = blockpilot.draw_projection(jax.random.key(0), 40, 4000)
    np.testing.assert_allclose(
        np.linalg.norm(blockpilot.blockpilot_features(low, raw, random), axis=1),
        np.linalg.norm(raw, axis=1),
        rtol=0.1,
    )
    layers = blockpilot.init_blockpilot(jax.random.key(1), 5, 2, width=8)
    policy = blockpilot.make_blockpilot(
        (4, 5), blockpilot.Predictor(layers, principal), reduction="projection"
    )
    answer = jax.jit(policy.config.functions().act.block)(policy.controls, None, observed(raw))
    assert set(np.unique(answer)) <= {4, 5} and answer.shape == (12,)


def test_refusals():
    layers = blockpilot.init_blockpilot(jax.random.key(0), 6, 2, width=4)
    with pytest.raises(ValueError, match="scale is 'log': choose one of raw, softmax, zscore, l2"):
        blockpilot.make_blockpilot((4, 5), blockpilot.Predictor(layers), scale="log")
    with pytest.raises(
        ValueError, match=r"sizes are \[5, 4\]: give block sizes in ascending order"
    ):
        blockpilot.make_blockpilot((5, 4), blockpilot.Predictor(layers))
    with pytest.raises(ValueError, match="give the predictor axes"):
        blockpilot.make_blockpilot((4, 5), blockpilot.Predictor(layers), reduction="projection")
    with pytest.raises(ValueError, match="BlockPilot policy's layers"):
        blockpilot.make_blockpilot((4, 5, 6), blockpilot.Predictor(layers))
