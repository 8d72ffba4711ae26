"""Hidden states, logits, biases and confidences of DeepSpec's own PyTorch code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays, golden

import jaxspec
from jaxspec.core.cache import allocate, append
from jaxspec.drafters.dspark.network import HEADS, DSpark, DSparkConfig
from jaxspec.targets.transformer import Transformer

KINDS = (*HEADS, "dflash")
# The independent port behind the data is within 3e-6 of it in float64; float32 adds its rounding.
TOLERANCE = 5e-6


class Golden:
    """A drafter of one kind, its target and the recorded arrays."""

    def __init__(self, kind):
        self.arrays = arrays("dspark", f"forward_{kind}.npz")
        model = jaxspec.load(
            golden("dspark", "target"),
            drafter={"dspark": golden("dspark", f"draft_{kind}")},
            dtype="float32",
        )
        self.config, self.variables = model.spec.drafter("dspark"), model.drafters["dspark"]
        self.target = Transformer(model.spec.target).bind(model.target)
        self.apply = jax.jit(
            lambda *args, method: DSpark(self.config).apply(self.variables, *args, method=method),
            static_argnames="method",
        )

    def absorb(self, cache, features):
        positions = cache.length[:, None] + jnp.arange(features.shape[1])
        k, v = self.apply(jnp.asarray(features), positions, method="context_kv")
        return append(cache, (k,), (v,), jnp.array([features.shape[1]]))

    def draft(self, cache, anchor):
        """Hidden states of the block after `anchor`."""
        ids = np.full((1, self.config.block_size), self.config.mask_token_id)
        ids[0, 0] = anchor
        positions = cache.length[:, None] + jnp.arange(self.config.block_size)
        return ids, self.apply(self.target.embed(ids), positions, cache, method="__call__")


@pytest.fixture(scope="module", params=KINDS)
def found(request):
    golden = Golden(request.param)
    length = int(golden.arrays["context_len"])
    cache = allocate(golden.config, 1, length + 16, jnp.float32)
    cache = golden.absorb(cache, golden.arrays["target_features"][:, :length])
    ids, hidden = golden.draft(cache, golden.arrays["input_ids"][0, length])
    return golden, cache, ids, hidden


@pytest.fixture(scope="module", params=HEADS)
def headed(request):
    return Golden(request.param)


def close(ours, theirs):
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=0, atol=TOLERANCE)


def test_context_and_block(found):
    golden, cache, ids, hidden = found
    arrays, length = golden.arrays, int(golden.arrays["context_len"])
    np.testing.assert_array_equal(ids, arrays["draft_input_ids"])
    context = DSpark(golden.config).apply(
        golden.variables,
        arrays["target_features"][:, :length],
        method=lambda drafter, features: drafter.backbone.context(features),
    )
    close(context, arrays["ctx_fused"])
    close(cache.k[0][0, :, :, :length], arrays["cache_k_layer0"])
    close(cache.v[0][0, :, :, :length], arrays["cache_v_layer0"])
    close(hidden, arrays["block_hidden"])
    close(golden.target.logits(hidden), arrays["base_logits"])


def test_features_of_the_target(found):
    golden, *_ = found
    ids = golden.arrays["input_ids"]
    positions = jnp.arange(ids.shape[1])[None]
    out = golden.target(ids, positions, feature_layers=golden.config.feature_layers)
    close(out.features, golden.arrays["target_features"])


def test_the_embeddings_are_a_feature_too(headed):
    ids = headed.arrays["input_ids"]
    positions = jnp.arange(ids.shape[1])[None]
    out = headed.target(ids, positions, feature_layers=(-1, 0))
    width = headed.config.target_hidden_size
    np.testing.assert_array_equal(out.features[..., :width], headed.target.embed(ids))
    close(out.features[..., width:], headed.arrays["target_features"][..., :width])


def test_the_context_grows(found):
    golden, cache, *_ = found
    arrays, length = golden.arrays, int(golden.arrays["context_len"])
    cache = golden.absorb(cache, arrays["target_features"][:, length : length + 3])
    assert int(cache.length[0]) == arrays["inc_cache_len"]
    _, hidden = golden.draft(cache, arrays["input_ids"][0, length + 3])
    close(hidden, arrays["inc_block_hidden"])


def test_greedy_chain_step_by_step(headed):
    arrays, previous, state = headed.arrays, headed.arrays["draft_input_ids"][:, 0], None
    for k in range(headed.config.block_size):
        np.testing.assert_array_equal(previous, arrays["prev_token_ids"][:, k])
        hidden = arrays["block_hidden"][:, k]
        bias, state = headed.apply(previous, hidden, state, method="step_bias")
        close(bias, arrays["step_bias"][:, k])
        corrected = arrays["base_logits"][:, k] + bias
        close(corrected, arrays["corrected_logits"][:, k])
        previous = np.argmax(corrected, -1)
        np.testing.assert_array_equal(previous, arrays["draft_tokens"][:, k])


def test_known_tokens_of_whole_blocks(headed):
    arrays = headed.arrays
    bias = headed.apply(arrays["tf_prev_ids"], arrays["tf_hidden"], method="block_bias")
    close(arrays["tf_base_logits"] + bias, arrays["tf_logits"])


def test_confidence(headed):
    arrays = headed.arrays
    logits = headed.apply(arrays["prev_token_ids"], arrays["block_hidden"], method="confidence")
    assert logits.dtype == jnp.float32
    close(logits, arrays["confidence_logits"])
    close(jax.nn.sigmoid(logits), arrays["confidence_prob"])
    close(jnp.cumprod(jax.nn.sigmoid(logits), -1), arrays["survival_prob"])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"markov_head": "lstm"}, "unknown Markov head 'lstm'"),
        ({"markov_rank": -1}, "markov_rank is -1"),
        ({"markov_rank": 0}, "cannot read a Markov head of rank 0"),
    ],
)
def test_configs_that_make_no_sense(fields, words):
    sizes = {"hidden_size": 8, "num_layers": 1, "num_heads": 1, "num_kv_heads": 1}
    with pytest.raises(ValueError, match=words) as error:
        DSparkConfig(**sizes, head_dim=8, ffn_size=8, **fields)
    assert "\n" not in str(error.value)


def test_tokens_drafted_from_a_block():
    sizes = {"hidden_size": 8, "num_layers": 1, "num_heads": 1, "num_kv_heads": 1}
    sizes |= {"head_dim": 8, "ffn_size": 8, "block_size": 7}
    assert DSparkConfig(**sizes).depth == 7
    assert DSparkConfig(**sizes, sample_from_anchor=False, causal=True).depth == 6
