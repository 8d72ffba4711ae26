"""Rules and classifiers against recorded traces and forwards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays

from jaxspec.policies.learned import c2t, disco, specdec_plus
from jaxspec.policies.learned.networks import silu_head
from jaxspec.policies.rules import ddd, gammatune, svip

GOLDEN = arrays("ltd", "baselines.npz")


def layer(weight: str, bias: str) -> dict:
    return {"kernel": jnp.asarray(GOLDEN[weight].T), "bias": jnp.asarray(GOLDEN[bias])}


def drafted(goes_on: np.ndarray) -> np.ndarray:
    """Steps taken until the first refusal, from verdicts [..., steps] after each."""
    refused = ~np.asarray(goes_on)
    return np.where(refused.any(-1), refused.argmax(-1) + 1, refused.shape[-1])


def test_disco():
    weights = [layer("disco_w1", "disco_b1"), layer("disco_w2", "disco_b2")]
    found = disco.disco_logit(weights, jnp.asarray(GOLDEN["disco_x"]))
    np.testing.assert_allclose(found, GOLDEN["disco_logit"], atol=1e-5)
    np.testing.assert_allclose(jax.nn.sigmoid(found), GOLDEN["disco_prob"], atol=1e-6)
    disco.make_disco(weights)


def test_c2t():
    weights = [layer("c2t_w1", "c2t_b1"), layer("c2t_w2", "c2t_b2")]
    found = c2t.c2t_logit(weights, jnp.asarray(GOLDEN["c2t_x"]))
    np.testing.assert_allclose(found, GOLDEN["c2t_logit"], atol=1e-5)
    np.testing.assert_allclose(jax.nn.sigmoid(found), GOLDEN["c2t_prob"], atol=1e-6)
    c2t.make_c2t(weights, **c2t.PRESETS["c2t-ltd"])


def test_specdec_plus():
    weights = {
        "hidden": layer("spp_w1", "spp_b1"),
        "shortcut": layer("spp_wp", "spp_bp"),
        "out": layer("spp_wo", "spp_bo"),
    }
    found = silu_head(weights, jnp.asarray(GOLDEN["spp_x"]))
    np.testing.assert_allclose(found, GOLDEN["spp_logit"], atol=1e-5)
    np.testing.assert_allclose(
        specdec_plus.log_accepted(weights, jnp.asarray(GOLDEN["spp_x"])), jax.nn.log_sigmoid(found)
    )


@pytest.mark.parametrize("threshold", [0.3, 0.7])
def test_specdec_plus_stops_where_it_was_recorded(threshold):
    """The first token's factor is 1; at least 2 tokens and at most 20."""
    settings = specdec_plus.SpecDecPlusConfig()
    factors = GOLDEN["spp_p_acc"].copy()
    factors[:, 0] = 1
    verdicts = specdec_plus.passes_specdec_plus(
        settings, threshold, np.cumsum(np.log(factors), axis=1), 1 + np.arange(factors.shape[1])
    )
    np.testing.assert_array_equal(drafted(verdicts), GOLDEN[f"spp_len_thr{threshold}"])


def test_ddd():
    policy = ddd.make_ddd(**ddd.PRESETS["ddd-ltd"])
    settings, threshold = policy.config, policy.controls.threshold
    beams = jnp.asarray(GOLDEN["ddd_beams"], jnp.float32)
    steps = 1 + jnp.arange(beams.shape[1])
    np.testing.assert_allclose(ddd.sum_frontier(beams), GOLDEN["ddd_H"], atol=1e-5)
    verdicts = ddd.passes_ddd(settings, threshold, beams, steps)
    np.testing.assert_array_equal(drafted(verdicts), GOLDEN["ddd_stop_-0.3"])
    # The authors' cap of 11 steps ends what was not stopped before.
    paper = ddd.passes_ddd(ddd.make_ddd().config, threshold, beams, steps)
    np.testing.assert_array_equal(drafted(paper), np.minimum(GOLDEN["ddd_stop_-0.3"], 11))


def test_svip():
    logprob = jax.nn.log_softmax(jnp.asarray(GOLDEN["svip_logits"]))
    entropy = -jnp.sum(jnp.exp(logprob) * logprob, axis=-1)
    np.testing.assert_allclose(entropy, GOLDEN["svip_entropy"], atol=1e-5)
    policy = svip.make_svip()
    verdicts = svip.passes_svip(policy.config, policy.controls.threshold, entropy)
    np.testing.assert_array_equal(drafted(verdicts), GOLDEN["svip_stop_len"])


@pytest.mark.parametrize("name", ["paper", "ltd"])
def test_gammatune(name):
    """Both recorded traces: the window and the mean that enter every round; windows stay within
    their bounds.
    """
    settings = gammatune.make_gammatune(**gammatune.PRESETS[f"gammatune-{name}"]).config

    def round_(state, could):
        accepted = jnp.minimum(could, state.window)
        return gammatune.adjust_windows(settings, state, accepted), (
            state.window,
            state.mean,
            accepted,
        )

    could = jnp.asarray(GOLDEN["gt_cap_accept"], jnp.int32)
    last, rows = jax.lax.scan(round_, gammatune.init_windows(settings), could)
    expected = GOLDEN[f"gt_{name}_trace"]
    np.testing.assert_allclose(np.stack(rows, axis=1), expected[:-1], atol=1e-4)
    np.testing.assert_allclose((last.window, last.mean), expected[-1, :2], atol=1e-4)


def test_gammatunes_worked_example():
    settings, state = gammatune.make_gammatune().config, None
    state = gammatune.init_windows(settings)
    for (window, mean, _), accepted in zip(GOLDEN["gt_doc_example"], (3, 2, 3), strict=False):
        np.testing.assert_allclose((state.window, state.mean), (window, mean), atol=1e-5)
        state = gammatune.adjust_windows(settings, state, jnp.int32(accepted))
    np.testing.assert_allclose(
        (state.window, state.mean), GOLDEN["gt_doc_example"][-1, :2], atol=1e-5
    )
    # A tree shallower than the window: accepting all of it is as much as can be.
    assert gammatune.adjust_windows(settings, state, jnp.int32(4), longest=4).window == 7
