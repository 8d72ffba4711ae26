"""What the compiled loop must be: compiled once, without the host, its caches updated in place."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import SHIPPED
from short_models import shorten
from slow_cases import slow_except

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.call.session import prepare, run_prefill
from jaxspec.core.state import KVCache
from jaxspec.costs.round_costs import make_costs
from jaxspec.policies.bastion.controller import make_bastion
from jaxspec.round.loop import run

GOLDEN = SHIPPED / "dflash"


@pytest.fixture(scope="module")
def params():
    return shorten(jaxspec.load(GOLDEN / "target", drafter=GOLDEN / "drafter", dtype="float32"))


# The loop of a policy holds rounds that draft and rounds that do not.
KINDS = slow_except(["ar", "policy"], ["ar", "best_first", "batch", "policy", "groups"])


@pytest.fixture(scope="module", params=KINDS)
def compiled(request, params):
    """The loop's executable and the state it takes."""
    prompt = [[1, 2, 3]] * 4 if request.param == "batch" else [1, 2, 3]
    options = dict(drafter="ar") if request.param == "ar" else dict(builder="best_first", budget=12)
    if request.param == "policy":
        options["policy"] = make_bastion(
            make_costs((1, 4, 13), (0,), (1.0,), [[10.0], [11.0], [14.0]])
        )
    if request.param == "groups":
        params = jaxspec.load(SHIPPED / "targets" / "gemma4", dtype="float32")
        options = dict(drafter="prompt_lookup", budget=12)
    session = prepare(params, prompt, max_new_tokens=40, **group_options(**options))
    state = run_prefill(session)
    return run.lower(
        params, session.request, state, jnp.int32(4), config=session.config
    ).compile(), state


@pytest.mark.thorough
def test_a_second_call_of_the_same_bucket_compiles_nothing(params):
    compilations = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compilations.append(event)
    )
    sampling = dict(builder="chain", budget=6)
    packs = 1
    for temperature in (0.0, 1.0):
        jaxspec.decode(
            params,
            [5, 6, 7],
            temperature=temperature,
            max_new_tokens=30,
            **group_options(**sampling),
        )
        before = sum("backend_compile" in event for event in compilations)
        assert before > 0
        jaxspec.decode(
            params,
            list(range(20)),
            temperature=temperature * 0.7,
            seed=8,
            max_new_tokens=41,
            stop=[3],
            **group_options(**sampling),
        )
        assert sum("backend_compile" in event for event in compilations) == before
        # Streaming calls the same executable round by round: what it returns must look like what it
        # takes. It compiles one small program, which packs what the host reads.
        for _ in range(2):
            list(
                jaxspec.stream(
                    params,
                    [5, 6],
                    temperature=temperature,
                    max_new_tokens=30,
                    **group_options(**sampling),
                )
            )
            assert sum("backend_compile" in event for event in compilations) <= before + packs
        packs = 0


def test_the_loop_is_on_the_device(compiled):
    text = compiled[0].as_text()
    assert " while(" in text
    assert not re.search("callback|infeed|outfeed|host", text.lower().replace("hostname", ""))


def test_the_cache_is_aliased_and_never_copied(compiled):
    executable, state = compiled
    caches = [cache for cache in (state.cache, state.draft) if isinstance(cache, KVCache)]
    held = sum(rows.nbytes for cache in caches for rows in (*cache.k, *cache.v))
    assert executable.memory_analysis().alias_size_in_bytes >= held
    shapes = {",".join(map(str, rows.shape)) for cache in caches for rows in (*cache.k, *cache.v)}
    for shape in shapes:
        copies = re.findall(rf"= f32\[{shape}\]\S* (?:copy|transpose)\(", executable.as_text())
        assert not copies, f"{len(copies)} copies of a cache of shape {shape}"


def test_the_state_is_donated(params):
    session = prepare(params, [1, 2, 3], max_new_tokens=10, drafter="ar")
    state = run_prefill(session)
    address = state.cache.k[0].unsafe_buffer_pointer()
    after = run(params, session.request, state, jnp.int32(3), config=session.config)
    assert state.cache.k[0].is_deleted()
    assert after.cache.k[0].unsafe_buffer_pointer() == address
    np.testing.assert_array_equal(after.cache.length, [6])
