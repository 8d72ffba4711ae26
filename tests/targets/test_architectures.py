"""Named architectures: the sizes of the published models, and random weights of the shapes that are
decoded with.
"""

import jax
import jax.numpy as jnp
import pytest

import jaxspec
from jaxspec.bench.architectures import ARCHITECTURES, abstract_params, architecture, random_params

# Billions of parameters as the models' cards state them, embeddings included once where they are
# tied.
BILLIONS = {
    "qwen3-0.6b": 0.596,
    "qwen3-1.7b": 1.721,
    "qwen3-4b": 4.022,
    "qwen3-8b": 8.191,
    "qwen3-14b": 14.768,
    "qwen3-32b": 32.762,
    "qwen3-30b-a3b": 30.532,
    "llama-3.1-8b": 8.030,
    "qwen2.5-7b": 7.616,
    # The text part, and one that counts 20.9 billion with its embeddings and biases.
    "gemma-3-12b": 11.766,
    "gpt-oss-20b": 20.915,
    "smollm2-135m": 0.1345,
}


def size(tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


QUICK = ("qwen3-0.6b", "llama-3.1-8b", "gpt-oss-20b")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in BILLIONS],
)
def test_sizes_are_those_of_the_published_models(name):
    params = abstract_params(architecture(name))
    assert size(params.target) / 1e9 == pytest.approx(BILLIONS[name], abs=6e-4)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.bfloat16)}


def test_the_published_head_reads_the_published_layers():
    assert architecture("qwen3-8b").drafters[0][1].feature_layers == (1, 9, 17, 25, 33)
    assert architecture("llama-3.1-8b").drafters[0][1].feature_layers == (1, 8, 15, 22, 29)


def test_mini_is_the_model_that_ships():
    mini, spec = jaxspec.load("mini"), architecture("mini", block_size=8, drafter_layers=2)
    assert spec.target == mini.spec.target
    drawn = random_params(spec, jnp.float32)
    for one, other in (
        (drawn.target, mini.target),
        (drawn.drafters["jetspec"], mini.drafters["jetspec"]),
    ):
        assert jax.tree.map(jnp.shape, one) == jax.tree.map(jnp.shape, other)
    norm = drawn.target["params"]["norm"]["scale"]
    assert jnp.all(norm == 1) and 0.019 < float(drawn.target["params"]["embedding"].std()) < 0.021


def test_an_unknown_name_is_refused():
    with pytest.raises(
        ValueError, match="unknown architecture 'qwen4': .*choose one of qwen3-0.6b, "
    ):
        architecture("qwen4")
    assert "mini" in ARCHITECTURES
