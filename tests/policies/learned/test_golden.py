"""Classifiers against recorded forwards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays

from jaxspec.policies.learned import c2t, disco, specdec_plus
from jaxspec.policies.learned.networks import silu_head

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
