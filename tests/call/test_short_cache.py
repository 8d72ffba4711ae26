"""Keys and values in fp8: what is decoded does not depend on what is drafted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import serve_toys
from hybrid_toys import HYBRID
from sharded_toys import make_params

import jaxspec
from jaxspec.core.cache import allocate
from jaxspec.io.text.tokenizer import load_tokenizer
from jaxspec.serve import ServeRequest
from jaxspec.targets.layers import round_to
from jaxspec.targets.transformer import Transformer

SHORT = jnp.float8_e4m3fn
PROMPTS = ["def add(a, b):\n    return", "The quick brown"]


@pytest.fixture(scope="module")
def params():
    return jaxspec.load("mini", dtype="float32", cache_dtype="fp8", drafter="jetspec")


def decode(params, drafter, **options):
    outs = jaxspec.decode(params, PROMPTS, drafter=drafter, max_new_tokens=40, **options)
    return [out.tokens for out in outs]


def test_numbers_are_rounded_and_bounded():
    x = jnp.array([0.0, 1.03, -17.3, 460.0, -1e9], jnp.bfloat16)
    rounded = round_to(x, "float8_e4m3fn")
    assert rounded.dtype == x.dtype
    np.testing.assert_array_equal(rounded, jnp.array([0, 1, -18, 448, -448], jnp.bfloat16))


def test_the_cache_is_in_one_byte(params):
    cache = allocate(params.spec.target, 1, 32, params.dtype)
    assert {leaf.dtype for leaf in (*cache.k, *cache.v)} == {jnp.dtype(SHORT)}
    assert all(layer.cache_dtype == "float8_e4m3fn" for layer in params.spec.target.list_layers())


@pytest.mark.parametrize("temperature", [0.0, pytest.param(0.8, marks=pytest.mark.thorough)])
def test_trees_give_the_text_of_the_rounded_model(params, temperature):
    plain = decode(params, "ar", temperature=temperature)
    assert decode(params, "jetspec", budget=16, temperature=temperature) == plain
    assert decode(params, "prompt_lookup", budget=8, temperature=temperature) == plain


def test_text_is_that_of_a_forward_pass_without_a_cache(params):
    """Rows that are not cached yet are rounded as well."""
    (out, _) = jaxspec.decode(params, PROMPTS, drafter="jetspec", budget=16, max_new_tokens=40)
    prompt = load_tokenizer(params.spec.tokenizer).encode(PROMPTS[0])
    ids = [*prompt, *out.tokens]
    model = Transformer(params.spec.target)

    @jax.jit
    def predict(variables, tokens):
        hidden = model.apply(variables, tokens, jnp.arange(tokens.shape[1])[None]).hidden
        return model.apply(variables, hidden, method="logits").argmax(-1)

    found = predict(params.target, jnp.array([ids]))[0, len(prompt) - 1 : -1]
    assert found.tolist() == list(out.tokens)
    exact = jaxspec.load("mini", dtype="float32", drafter="jetspec")
    assert decode(exact, "ar") != decode(params, "ar"), "rounding must matter for this to be a test"


@pytest.mark.thorough
def test_the_engine_keeps_it_too(params):
    requests = [ServeRequest(serve_toys.PROMPT, max_new_tokens=24) for _ in range(2)]
    engine = serve_toys.make(params, drafter="jetspec")
    plain = jaxspec.decode(params, list(serve_toys.PROMPT), drafter="ar", max_new_tokens=24)
    assert [one[0] for one in serve_toys.run(engine, *requests)] == [plain.tokens] * 2


def test_states_of_recurrent_layers_keep_their_dtype():
    """New rows are convolved with those of the state, which must not be rounded more than they."""
    params = make_params(HYBRID.with_cache("fp8"), ("eagle3",))
    cache = allocate(params.spec.target, 1, 32, params.dtype)
    assert {leaf.dtype for leaf in (*cache.k, *cache.v)} == {jnp.dtype(SHORT)}
    assert {leaf.dtype for leaf in jax.tree.leaves(cache.recurrent)} == {jnp.dtype("float32")}
    prompts, how = [[4, 9, 2, 14, 4, 9], [7]], {"max_new_tokens": 20}
    drafted = jaxspec.decode(params, prompts, drafter="eagle3", budget=8, **how)
    plain = jaxspec.decode(params, prompts, drafter="ar", **how)
    assert [out.tokens for out in drafted] == [out.tokens for out in plain]


def test_other_names_are_refused():
    with pytest.raises(ValueError, match="unknown cache_dtype 'fp16': choose one of fp8"):
        jaxspec.load("mini", cache_dtype="fp16")
