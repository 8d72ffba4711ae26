"""An engine whose attention takes packed rows by tiles, in Pallas' interpreter."""

import numpy as np
import pytest
from serve_toys import PROMPT, SAMPLED, make, run

import jaxspec
from jaxspec.serve import ServeRequest
from pallas_kernels.registry import using

OTHER = (5, 6, 7)


@pytest.mark.slow
def test_an_engine_with_the_kernel_gives_the_texts_of_decode():
    params = jaxspec.load("mini", drafter="dflash", dtype="float32")
    options = dict(max_new_tokens=10, ignore_eos=True)
    want = [
        jaxspec.decode(params, [list(prompt)], **options, **sampling)[0].tokens
        for prompt, sampling in ((PROMPT, {}), (OTHER, SAMPLED))
    ]
    with using("interpret"):
        # Roots alone in two rows; drafted rows in 16, of which the second slot takes fewer.
        engine = make(params, rounds=2)
        requests = (ServeRequest(PROMPT, **options), ServeRequest(OTHER, **options, **SAMPLED))
        got = run(engine, *requests)
    for (tokens, _, drafted, _), expected in zip(got, want, strict=True):
        np.testing.assert_array_equal(tokens, expected)
        assert any(drafted)
