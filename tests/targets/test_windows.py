"""Windows and sinks in decodes: prompts longer than a window, batches, trees, and the engine."""

from __future__ import annotations

import numpy as np
import pytest
from golden_data import SHIPPED

import jaxspec
from jaxspec.core.config import TargetConfig
from jaxspec.serve import ServeRequest, make_engine
from jaxspec.targets.transformer import Transformer
from jaxspec.tuner.serving.costs import Costs

MODELS = SHIPPED / "targets"
WINDOWS = {"gpt_oss": [5, None, 5], "gemma4": [5, None, 5, None], "mimo_v2_flash": [5, None, 5]}
GREEDY = jaxspec.Sampling(ignore_eos=True)
TOKENS = 20


CASES = [
    pytest.param(name, marks=() if name == "gpt_oss" else pytest.mark.thorough) for name in WINDOWS
]


@pytest.fixture(scope="module", params=CASES)
def params(request):
    """Windows of five: shorter than prompts, trees and chunks; sinks and experts, or two groups of
    layers, some of which read the keys of others. The target is its own draft model, so that long
    paths are accepted.
    """
    folder = MODELS / request.param
    found = jaxspec.load(folder, dtype="float32", drafter={"draft_model": folder})
    assert isinstance(found.spec.target, TargetConfig)
    assert [layer.window for layer in found.spec.target.layers] == WINDOWS[request.param]
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["gemma4", "gemma4_moe", "mimo_v2_flash"])
@pytest.mark.parametrize("how", [{"dtype": "bfloat16"}, {"quantize": "int8"}], ids=str)
def test_logits_of_fewer_bits_are_near(name, how):
    found = jaxspec.load(MODELS / name, **({"dtype": "float32"} | how))
    with np.load(MODELS / name / "expected.npz") as arrays:
        tokens, places = (arrays[x].astype(np.int32) for x in ("tokens", "positions"))
        expected = arrays["logits"]
    module = Transformer(found.spec.target)
    out = module.apply(found.target, tokens, places)
    logits = module.apply(found.target, out.hidden, method="logits")
    assert np.median(np.abs(logits - expected)) < 0.05 * expected.std()


def list_prompts():
    random = np.random.default_rng(4)
    # They repeat themselves, so that lookup drafts more rows than a window.
    return [random.integers(2, 40, 7).tolist() * times for times in (1, 6, 3)]


def test_trees_deeper_than_a_window_give_the_text_of_single_rows(params):
    prompts = list_prompts()
    plain = jaxspec.decode(params, prompts, drafter="ar", max_new_tokens=TOKENS, sampling=GREEDY)
    given = dict(
        drafter="draft_model",
        budget=24,
        speculation=jaxspec.Speculation(builder="dynamic/w2", policy=None, depth=8, lookup=False),
    )
    drafted = jaxspec.decode(params, prompts, max_new_tokens=TOKENS, sampling=GREEDY, **given)
    for one, other, prompt in zip(plain, drafted, prompts, strict=True):
        assert other.tokens == one.tokens
        assert max(other.per_round.tokens) > 5
        alone = jaxspec.decode(params, prompt, max_new_tokens=TOKENS, sampling=GREEDY, **given)
        assert alone.tokens == one.tokens


def test_packed_rows_of_an_engine_see_their_windows(params):
    prompts = list_prompts()
    plain = jaxspec.decode(params, prompts, drafter="ar", max_new_tokens=TOKENS, sampling=GREEDY)
    engine = make_engine(
        params,
        drafter="prompt_lookup",
        slots=3,
        capacity=128,
        budget=12,
        edges=(3, 36),
        costs=Costs((1.0, 1.1), (0.5,) * 3),
    )
    ids = {
        engine.submit(ServeRequest(tuple(prompt), max_new_tokens=TOKENS, ignore_eos=True)): i
        for i, prompt in enumerate(prompts)
    }
    found = {i: [] for i in ids.values()}
    while not engine.idle:
        for update in engine.visit():
            found[ids[update.id]] += update.tokens
    for i, one in enumerate(plain):
        assert found[i] == list(one.tokens)


@pytest.mark.thorough
def test_a_draft_model_sees_its_windows_among_rows_that_are_not_cached(params):
    """Drafting with the target itself, every token of a path longer than a window is accepted."""
    prompt = list_prompts()[1]
    drafted = jaxspec.decode(
        params,
        prompt,
        drafter="draft_model",
        budget=9,
        max_new_tokens=36,
        sampling=GREEDY,
        speculation=jaxspec.Speculation(builder="chain", policy=None, depth=8, lookup=False),
    )
    plain = jaxspec.decode(params, prompt, drafter="ar", max_new_tokens=36, sampling=GREEDY)
    assert drafted.tokens == plain.tokens
    assert drafted.stats.rounds == 4
