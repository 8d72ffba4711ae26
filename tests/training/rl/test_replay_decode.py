"""A record replays what the decode loop does, LTD's policies included; they change no text."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest
from golden_data import SHIPPED

import jaxspec
from benchmarks.training import ltd_check
from jaxspec.call.options import group_options
from jaxspec.call.prefill import prefill
from jaxspec.policies.learned.ltd import LtdConfig, make_ltd
from jaxspec.policies.learned.ltd_features import depth_inputs
from jaxspec.policies.learned.networks import init_layers
from jaxspec.round.loop import run
from training.replay.records import Record
from training.rl import replay
from training.rl.options import TextOptions, decode_options
from training.rl.record import record_texts

pytestmark = pytest.mark.slow
GOLDEN = SHIPPED
PROMPTS = [[117, 142, 122, 64, 240, 19], [40, 41, 42, 43]]
OPTIONS = TextOptions(
    drafter="eagle3", prompts=Path(), width=3, steps=3, sizes=(2, 8), max_new_tokens=24, batch=2
)
SETTINGS = LtdConfig((2, 8), 3, 3, (1, 2), (2, 8))


@pytest.fixture(scope="module")
def recorded(eagle):
    return record_texts(eagle, PROMPTS, OPTIONS)


def policy(seed: int = 0):
    """Networks with first weights so large that decisions differ from round to round."""
    first, second = jax.random.split(jax.random.key(seed))
    wide = jax.nn.initializers.normal(1.0)
    depth = init_layers(first, (depth_inputs(3), 8, 2), wide, wide)
    return make_ltd(
        SETTINGS, depth, init_layers(second, (SETTINGS.size_inputs(), 8, 2), wide, wide)
    )


def record_of(found) -> Record:
    names = [field.name for field in dataclasses.fields(Record)[1:]]
    header = {"sizes": OPTIONS.sizes, "score_scale": OPTIONS.score_scale}
    return Record(header, **{name: found[name] for name in names})


def decided(record: Record, ltd) -> tuple[np.ndarray, np.ndarray]:
    steps = replay.choose_depths(record, ltd.controls.depth, SETTINGS)
    return steps, replay.choose_sizes(record, ltd.controls.size, SETTINGS)[
        np.arange(len(steps)), steps
    ]


def test_every_round_is_the_recorded_one(eagle, recorded):
    record = record_of(recorded)
    every = (policy(seed) for seed in range(50))
    ltd = next(one for one in every if all(len(np.unique(x)) > 1 for x in decided(record, one)))
    steps, sizes = decided(record, ltd)
    walk = replay.walk(record, np.ones(record.committed.shape, np.float32), steps, sizes)
    for number, (prompt, start) in enumerate(zip(PROMPTS, record.first(), strict=True)):
        out = jaxspec.decode(
            eagle,
            prompt,
            trace=True,
            **group_options(policy=ltd, **decode_options(eagle, OPTIONS)),
            max_new_tokens=24,
        )
        at = int(start)
        for one in out.rounds:
            seen = jax.tree.map(lambda x, at=at: x[at], recorded["seen"])
            token, parent = ltd_check._of_pool(
                seen, int(steps[at]), OPTIONS.sizes[sizes[at]], OPTIONS
            )
            assert (
                one.tree.parent.tolist() == parent.tolist()
                and one.tree.token[1:].tolist() == token[1:].tolist()
            )
            assert len(one.path) == record.committed[at, steps[at], sizes[at]]
            at += len(one.path)
        assert at == start + record.remaining[start]
        assert (
            walk.rounds[number] == len(out.rounds) and walk.tokens[number] == out.stats.emitted - 1
        )
    assert walk.rounds.sum() < walk.tokens.sum()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_text_changes_and_nothing_compiles_again(eagle, temperature):
    options = dict(max_new_tokens=24, temperature=temperature, seed=3)
    plain = jaxspec.decode(eagle, PROMPTS, drafter="ar", **group_options(**options))
    outs = jaxspec.decode(
        eagle,
        PROMPTS,
        **group_options(policy=policy(), **options, **decode_options(eagle, OPTIONS)),
    )
    assert [out.tokens for out in outs] == [out.tokens for out in plain]
    compiled = prefill._cache_size(), run._cache_size()
    jaxspec.decode(
        eagle,
        [prompt[::-1] for prompt in PROMPTS],
        **group_options(policy=policy(1), **options, **decode_options(eagle, OPTIONS)),
    )
    assert (prefill._cache_size(), run._cache_size()) == compiled


@pytest.mark.parametrize(
    ("drafter", "block_size"), [("eagle3", None), ("jetspec", 8), ("specblock", None)]
)
def test_real_rounds_have_the_recorded_trees(drafter, block_size):
    options = dataclasses.replace(
        OPTIONS,
        drafter=drafter,
        block_size=block_size,
        sizes=(2, 8, 16),
        batch=1,
        max_new_tokens=48,
    )
    bundle = jaxspec.load("mini", drafter=drafter, dtype="float32")
    total = np.zeros(3, int)
    for prompt in PROMPTS:
        total += ltd_check.replayed(bundle, prompt, [(3, 16), (1, 8), (2, 2)], options)
    assert total[0] > 20 and total[2] >= 0.99 * total[0]
