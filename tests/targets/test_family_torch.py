"""Random tiny models of every family against transformers' PyTorch classes: logits, greedy texts,
and every node of a tree against its own path.

`JAXSPEC_DRAWS` is the number of models of each family and each dtype on disk (1). The worst
differences are printed at the end; an error shows a model by its family, number and dtype.
"""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_targets import FAMILIES, VOCAB, draw_config, save

import jaxspec
from jaxspec.core.cache import allocate, append
from jaxspec.targets.transformer import Transformer

DRAWS = int(os.environ.get("JAXSPEC_DRAWS", "1"))
TOLERANCE = 3e-4
STORAGE = ("float32", "bfloat16", "float16")
CASES = [(name, draw, how) for name in FAMILIES for draw in range(DRAWS) for how in STORAGE]
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def worst(request):
    """The largest difference of a family's logits for each dtype on disk; printed at the end."""
    found: dict[str, dict[str, float]] = {}
    yield found
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\n{'largest difference':14} " + "".join(f"{how:>10}" for how in STORAGE))
        for family, own in found.items():
            print(f"{family:18} " + "".join(f"{own.get(how, 0):10.1e}" for how in STORAGE))


@pytest.fixture(params=CASES, ids=lambda case: "-".join(map(str, case)))
def models(request, tmp_path, worst):
    pytest.importorskip("torch")
    family, draw, storage = request.param
    theirs = save(draw_config(family, draw), draw, tmp_path, storage)

    def compare(found, expected):
        own = worst.setdefault(family, {})
        own[storage] = max(own.get(storage, 0.0), float(np.abs(found - expected).max()))
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)

    return theirs, jaxspec.load(str(tmp_path)), compare, storage


def logits_of(theirs, tokens):
    import torch

    with torch.no_grad():
        return theirs(torch.tensor([tokens])).logits[0].float().numpy()


def test_logits_texts_and_trees(models):
    import torch

    theirs, params, compare, storage = models
    random = np.random.default_rng(0)
    module = Transformer(params.spec.target)

    @jax.jit
    def forward(tokens, positions):
        return module.apply(params.target, tokens, positions)

    @jax.jit
    def verify(cache, tokens, positions, mask):
        out = module.apply(params.target, tokens, positions, cache, mask)
        return module.apply(params.target, out.hidden, method="logits")

    for length in (3, 29) if storage == "float32" else (29,):
        tokens = random.integers(2, VOCAB, length).tolist()
        out = forward(jnp.array([tokens]), jnp.arange(length)[None])
        ours = module.apply(params.target, out.hidden, method="logits")[0]
        compare(ours, logits_of(theirs, tokens))
    if storage != "float32":  # which changes nothing but the weights
        return
    parent = np.array([-1, *(random.integers(max(i - 6, 0), i) for i in range(1, 24))])
    seen, depth = np.eye(24, dtype=bool), np.zeros(24, int)
    for node in range(1, 24):
        seen[node] |= seen[parent[node]]
        depth[node] = depth[parent[node]] + 1
    words = np.packbits(np.pad(seen, [(0, 0), (0, 8)]), axis=-1, bitorder="little")
    drafted = random.integers(2, VOCAB, 24)
    cache = allocate(module.config, 1, length, jnp.float32)
    cache = append(cache, out.k, out.v, jnp.array([length]), out.stash)
    found = verify(
        cache, drafted[None], (length + depth)[None], jnp.asarray(words.view(np.uint32)[None])
    )[0]
    for node in range(24):
        path = [*tokens, *drafted[seen[node]].tolist()]
        expected = logits_of(theirs, path)[-1]
        compare(found[node], expected)
    prompts = [random.integers(2, VOCAB, n).tolist() for n in (2, 25)]
    outputs = jaxspec.decode(
        params, prompts, max_new_tokens=40, sampling=jaxspec.Sampling(ignore_eos=True)
    )
    for prompt, output in zip(prompts, outputs, strict=True):
        with torch.no_grad():
            expected = theirs.generate(
                torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=None
            )
        _compare(output.tokens, expected[0, len(prompt) :].tolist(), theirs, prompt)


def _compare(ours, expected, theirs, prompt):
    """Compare greedy texts up to the first near-tie of the model itself."""
    for step, (one, other) in enumerate(zip(ours, expected, strict=True)):
        if one == other:
            continue
        found = logits_of(theirs, [*prompt, *expected[:step]])[-1]
        assert abs(found[one] - found[other]) < TOLERANCE, (step, one, other)
        return
