"""Losslessness on held-out text: `JAXSPEC_HELDOUT=heldout.jsonl.gz pytest -m slow
tests/call/test_heldout.py -s`.
"""

import os
import random

import pytest

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.io.text.prompt_files import read_prompts
from jaxspec.io.text.tokenizer import load_tokenizer

PER_DOMAIN = int(os.environ.get("JAXSPEC_HELDOUT_LIMIT", "30"))
METHODS = [
    dict(drafter="dflash", builder="chain", budget=8),
    dict(drafter="dflash", builder="best_first", budget=12),
    dict(drafter="jetspec", builder="best_first", budget=12),
    dict(drafter="jetspec", builder="expand/w3", budget=16),
    dict(drafter="eagle3", builder="dynamic/w4", budget=12),
    dict(drafter="specblock", builder="rank_guided", budget=12),
    dict(drafter="medusa", builder="best_first", budget=12),
    dict(drafter="parallelspec", builder="best_first", budget=12),
    dict(drafter="falcon", builder="chain", budget=7),
    dict(drafter="draft_model", builder="dynamic/w4", budget=12),
    dict(drafter="prompt_lookup", builder="chain", budget=8),
]
SAMPLING = [{}, *(dict(temperature=t, top_p=p) for t in (0.7, 1.0) for p in (None, 0.9))]


@pytest.fixture(scope="module")
def params():
    return jaxspec.load("mini", dtype="float32")


@pytest.fixture(scope="module")
def prompts(params):
    path = os.environ.get("JAXSPEC_HELDOUT")
    if not path:
        pytest.fail("set JAXSPEC_HELDOUT to a prompt file (JSON Lines of {domain, text})")
    return [
        prompt.content
        for prompt in read_prompts(path, load_tokenizer(params.spec.tokenizer), limit=PER_DOMAIN)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
def test_every_method_gives_the_autoregressive_tokens(params, prompts, sampling):
    options = dict(max_new_tokens=64, **sampling)
    expected = [
        jaxspec.decode(params, prompt, drafter="ar", **group_options(**options)).tokens
        for prompt in prompts
    ]
    total = sum(map(len, expected))
    shuffled = random.Random(0).sample(range(len(prompts)), len(prompts))
    ragged = [shuffled[i : i + 4] for i in range(0, len(shuffled) - 3, 4)]
    for method in METHODS:
        alone = [
            jaxspec.decode(params, prompt, **group_options(**method, **options)).tokens
            for prompt in prompts
        ]
        same = sum(
            a == b
            for ours, theirs in zip(alone, expected, strict=True)
            for a, b in zip(ours, theirs, strict=True)
        )
        print(f"{method} {sampling}: {same} of {total} tokens equal, {len(prompts)} prompts")
        assert alone == expected
        for group in ragged:
            outs = jaxspec.decode(
                params, [prompts[i] for i in group], **group_options(**method, **options)
            )
            assert [out.tokens for out in outs] == [expected[i] for i in group]
        print(f"   and in {len(ragged)} batches of 4 ragged prompts")
