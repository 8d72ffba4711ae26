"""Rules against recorded traces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays

from jaxspec.policies.rules import ddd, gammatune, svip

GOLDEN = arrays("ltd", "baselines.npz")


def layer(weight: str, bias: str) -> dict:
    return {"kernel": jnp.asarray(GOLDEN[weight].T), "bias": jnp.asarray(GOLDEN[bias])}


def drafted(goes_on: np.ndarray) -> np.ndarray:
    """Steps taken until the first refusal, from verdicts [..., steps] after each."""
    refused = ~np.asarray(goes_on)
    return np.where(refused.any(-1), refused.argmax(-1) + 1, refused.shape[-1])


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
