"""Modelled costs of devices that share a target."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from slow_cases import slow_except

from jaxspec.bench.architectures import ARCHITECTURES
from jaxspec.core.config import MoEConfig
from jaxspec.costs.roofline import DEVICES
from jaxspec.costs.shared_roofline import (
    choose_experts_split,
    count_cache,
    count_weights,
    expect_busiest,
    forward_seconds,
    shared_costs,
    sum_seconds,
)
from jaxspec.targets.sharding.shares import find_split, widen
from jaxspec.targets.transformer import Transformer

H100 = DEVICES["h100"]
NAMES = ("qwen3-32b", "qwen3-30b-a3b", "qwen3-4b")
QWEN3_32B, QWEN3_30B = ARCHITECTURES["qwen3-32b"], ARCHITECTURES["qwen3-30b-a3b"]


# Two devices share heads that eight have copies of.
@pytest.mark.parametrize(
    ("devices", "name"),
    slow_except(
        [(2, "qwen3-30b-a3b"), *((8, name) for name in NAMES if name != "qwen3-30b-a3b")],
        itertools.product((2, 4, 8), NAMES),
    ),
)
@pytest.mark.thorough
def test_the_bytes_of_a_device_are_those_of_its_arrays(name, devices):
    config = ARCHITECTURES[name]
    tokens = np.zeros((1, 1), np.int32)
    init = Transformer(widen(config, devices)).init
    shapes = jax.eval_shape(init, jax.random.key(0), tokens, tokens)["params"]
    held = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        split = find_split(tuple(key.key for key in path), config, devices)
        held += 2 * leaf.size / (1 if split.axis is None else devices)
    assert count_weights(config, devices).held == pytest.approx(held, rel=1e-3)


def test_one_device_holds_a_tied_table_once():
    config = ARCHITECTURES["qwen3-4b"]
    table = 2 * config.vocab_size * config.hidden_size
    alone, shared = (count_weights(config, devices).held for devices in (1, 2))
    assert alone == pytest.approx(8.04e9, rel=0.01) and shared > alone / 2 + table / 2


def test_caches_have_a_copy_of_a_head_where_there_are_fewer_than_devices():
    sizes = [count_cache(QWEN3_30B, devices, 1000) for devices in (1, 2, 4, 8)]
    assert sizes == [2 * 48 * heads * 128 * 1000 * 2 for heads in (4, 2, 1, 1)]


@pytest.mark.parametrize(
    ("config", "batch", "rows", "expected"),
    [
        (QWEN3_32B, 1, 64, [24.4, 14.8, 9.2, 6.4]),
        (QWEN3_32B, 16, 16, [30.0, 18.3, 11.7, 8.3]),
        (QWEN3_30B, 1, 1, [3.8, 3.9, 3.3]),
        (QWEN3_30B, 1, 16, [15.7, 9.8, 6.3]),
        (QWEN3_30B, 16, 8, [25.0, 14.6, 8.8]),
    ],
)
def test_rounds_take_what_a_calculation_by_hand_says(config, batch, rows, expected):
    found = [
        1e3 * forward_seconds(config, H100, 2**i, batch=batch, rows=rows, context=4096)
        for i in range(len(expected))
    ]
    np.testing.assert_allclose(found, expected, rtol=0.08)


def test_sums_cost_latency_and_bytes():
    assert sum_seconds(QWEN3_32B, 1, 64) == 0
    few, many = (sum_seconds(QWEN3_32B, 8, rows) for rows in (1, 1001))
    assert few == pytest.approx(128 * 12e-6, rel=0.01)
    assert many - few == pytest.approx(128 * 2 * 1000 * 5120 / 350e9)


def test_policies_read_the_same_costs():
    costs = shared_costs(QWEN3_30B, H100, 4, (1, 8, 64), (1000, 30000), batch=2, draft=1e-3)
    expected = forward_seconds(QWEN3_30B, H100, 4, batch=2, rows=8, context=30000)
    assert costs.seconds(30000, rows=8) == pytest.approx(expected + 1e-3)
    assert costs.widths == (1, 8, 64)


def test_the_busiest_device_uses_more_experts_than_the_mean():
    """Against draws, and where all experts are used."""
    moe = MoEConfig(num_experts=16, experts_per_token=1, expert_ffn_size=8)
    generator = np.random.default_rng(0)
    used = generator.random((20_000, 4, 4)) < 1 - (15 / 16) ** 10
    expected = used.sum(-1).max(-1).mean()
    assert expect_busiest(moe, 10, 4) == pytest.approx(expected, rel=0.01)
    assert expect_busiest(moe, 10_000, 4) == pytest.approx(4)


def test_experts_are_split_whole_where_many_rows_use_them_all():
    assert [choose_experts_split(QWEN3_30B, 8, rows) for rows in (64, 511, 512, 4096)] == [
        "channel",
        "channel",
        "expert",
        "expert",
    ]
    few = dataclasses.replace(QWEN3_30B, moe=dataclasses.replace(QWEN3_30B.moe, num_experts=126))
    assert choose_experts_split(few, 8, 4096) == "channel"  # 8 devices do not divide 126 experts
    # With a thousand experts, one device uses more than the others even then.
    many = dataclasses.replace(QWEN3_30B, moe=dataclasses.replace(QWEN3_30B.moe, num_experts=1024))
    assert choose_experts_split(many, 2, 128) == "channel"
    assert choose_experts_split(QWEN3_32B, 8, 4096) is None
    assert choose_experts_split(QWEN3_30B, 1, 4096) is None
