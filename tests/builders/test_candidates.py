import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.builders.candidates import rank


@pytest.mark.parametrize("case", ("flat_7x64", "wide_3x1000", "ties_6x40"))
def test_rank_equals_the_reference(ddtree, case):
    logits, expected = ddtree.logits(case), ddtree.candidates(case)
    ranked = jax.jit(rank, static_argnums=1)(logits[None], expected.token.shape[-1])
    np.testing.assert_array_equal(ranked.token[0], expected.token)
    np.testing.assert_allclose(ranked.logprob[0], expected.logprob, rtol=0, atol=1e-5)
    assert ranked.token.dtype == jnp.int32 and ranked.logprob.dtype == jnp.float32


def test_noise_reorders_and_rescales():
    rng = np.random.default_rng(1)
    logits, noise = rng.normal(size=(1, 2, 50)), rng.gumbel(size=(1, 2, 50))
    coupled = jax.jit(rank, static_argnums=1)
    ranked = coupled(jnp.float32(logits), 20, jnp.float32(noise), 0.5)
    perturbed = (logits + noise) / 0.5
    expected = perturbed - np.log(np.exp(perturbed).sum(-1, keepdims=True))
    order = np.argsort(-perturbed, axis=-1)[..., :20]
    np.testing.assert_array_equal(ranked.token, order)
    np.testing.assert_allclose(
        ranked.logprob, np.take_along_axis(expected, order, -1), rtol=1e-5, atol=1e-5
    )
    # Without noise too the temperature rescales scores and leaves the ranking.
    np.testing.assert_array_equal(
        coupled(jnp.float32(logits), 3, None, 0.5).token, coupled(jnp.float32(logits), 3).token
    )
    np.testing.assert_allclose(
        coupled(jnp.float32(logits), 3, None, 0.5).logprob,
        coupled(jnp.float32(logits / 0.5), 3).logprob,
        rtol=1e-6,
    )


def test_excluded_tokens_are_marked():
    logits = jnp.array([[[1.0, -jnp.inf, 2.0], [-jnp.inf] * 3]], jnp.bfloat16)
    ranked = jax.jit(rank, static_argnums=1)(logits, 3)
    assert ranked.token[0, 0, :2].tolist() == [2, 0]
    np.testing.assert_allclose(np.exp(ranked.logprob[0, 0]), [0.7310586, 0.26894143, 0], rtol=1e-5)
    assert (ranked.logprob[0, 1] == -jnp.inf).all()


@pytest.mark.parametrize("count", (0, 4))
def test_count_out_of_range(count):
    with pytest.raises(ValueError, match=f"{count} candidates asked of a vocabulary of 3"):
        rank(jnp.zeros((1, 1, 3)), count)
