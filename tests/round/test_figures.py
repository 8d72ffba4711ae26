"""Figures of draft steps reach the act that chooses rows: those of each sequence's own last step."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from short_models import shorten

import jaxspec
from jaxspec.builders import Proposes, parse_builder
from jaxspec.core.sampling.settings import SamplingSpec
from jaxspec.policies.protocol import Acts, Functions, Policy, PolicyConfig, keep_state
from jaxspec.policies.rules.static import make_static
from jaxspec.round.plan import DecodeConfig, _check_policy

PROMPTS = [[117, 142, 122, 64, 240, 19], [40, 41, 42, 43]]
NEEDS = ("entropy", "hidden")


@dataclasses.dataclass(frozen=True)
class Watcher(PolicyConfig):
    """Takes one step in the first sequence and two in the second, and shows what it saw."""

    sink: Any = None

    def functions(self):
        return _watch(self)


@functools.lru_cache
def _watch(config):
    def tell(name, seen):
        figures = {one: getattr(seen, one) for one in ("frontier", *NEEDS)}
        jax.experimental.io_callback(config.sink, None, name, seen.steps, figures, ordered=True)

    def deeper(controls, state, seen):
        tell(0, seen)
        return seen.steps < controls

    def rows(controls, state, seen):
        tell(1, seen)
        return jnp.int32(4)

    acts = Acts(deeper=deeper, rows=rows)
    return Functions(lambda shape: (), acts, keep_state, frozenset(NEEDS))


def test_rows_are_chosen_by_the_figures_of_the_last_step(eagle):
    told = []
    policy = Policy(Watcher((12,), sink=lambda *x: told.append(x)), jnp.array([1, 2]))
    given = jaxspec.Speculation(builder="dynamic/w3", policy=policy, budget=12, depth=4)
    short = shorten(eagle)
    jaxspec.decode(short, PROMPTS, drafter="eagle3", speculation=given, max_new_tokens=2)
    jax.effects_barrier()
    by_steps = {int(steps): figures for act, steps, figures in told[:3] if not int(act)}
    last = next(figures for act, _, figures in told if int(act))
    assert sorted(by_steps) == [0, 1, 2]
    for name in NEEDS:
        np.testing.assert_array_equal(last[name][0], by_steps[1][name][0])
        np.testing.assert_array_equal(last[name][1], by_steps[2][name][1])
        assert not np.array_equal(last[name][0], by_steps[2][name][1])
    np.testing.assert_allclose(last["frontier"][1], by_steps[2]["frontier"][1])


def test_a_shortlist_has_no_steps_to_read():
    builder = parse_builder("lattice/shortlist=4")
    sizes = Proposes(depth=3, slots=1, vocab_size=8, budget=8, steps=True, looks_ahead=True)
    check = functools.partial(
        _check_policy, DecodeConfig("dspark", SamplingSpec(True)), blocks=False, builder=builder,
        growth=builder.bind(sizes),
    )  # fmt: skip
    with pytest.raises(ValueError, match="follows draft steps, and a shortlist computes all"):
        check(policy=Watcher())
    check(policy=make_static(rows=4).config)
