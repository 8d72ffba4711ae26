"""Bytes and operations of the pieces of a round, against counts made by hand from the published
sizes.
"""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from jaxspec.bench.architectures import abstract_params, architecture
from jaxspec.bench.latency import floors
from jaxspec.targets.layouts.quant import quantize_params

# Matrices of Qwen3-8B that a token meets: 36 layers of q, k and v, o, gate and up, down; then the
# output projection.
LAYER = 4096 * 4096 + 4096 * 2048 + 4096 * 4096 + 4096 * 24576 + 12288 * 4096
HEAD = 4096 * 151936
NORMS = 36 * (2 * 4096 + 2 * 128) + 4096


@pytest.fixture(scope="module")
def qwen():
    return abstract_params(architecture("qwen3-8b"))


def test_a_step_reads_every_weight_once_and_the_context(qwen):
    step = floors.count_target_forward(qwen, batch=1, rows=1, context=0)
    assert step.bytes == 2 * (36 * LAYER + HEAD + NORMS) and round(step.bytes / 1e9, 2) == 15.14
    assert step.flops == 2 * (36 * LAYER + HEAD) + 4 * 36 * 32 * 128  # a row sees itself
    config = qwen.spec.target
    assert floors.count_kv_bytes(config, qwen.dtype) == 147_456
    wide = floors.count_target_forward(qwen, batch=3, rows=64, context=1000)
    assert wide.bytes == step.bytes + 3 * 1000 * 147_456
    assert wide.flops == 3 * 64 * (2 * (36 * LAYER + HEAD) + 4 * 36 * 32 * 128 * 1001)
    one = floors.count_attention(config, qwen.dtype, batch=3, rows=64, context=1000)
    assert one.bytes == 3 * 1000 * 4096 and one.flops == 3 * 64 * 4 * 32 * 128 * 1001


def test_the_floor_is_the_slower_of_moving_and_computing():
    assert floors.floor_seconds(floors.Work(100, 10), 10, 10) == 10
    assert floors.floor_seconds(floors.Work(100, 1000), 10, 10) == 100


def test_a_tied_table_is_read_as_output_projection():
    mini = abstract_params(architecture("mini"), jnp.float32)
    layer = 320 * 320 + 320 * 128 + 320 * 320 + 320 * 1920 + 960 * 320
    norms = 6 * (2 * 320 + 2 * 64) + 320
    step = floors.count_target_forward(mini, batch=1, rows=1, context=512)
    assert step.bytes == 4 * (6 * layer + 4096 * 320 + norms) + 512 * 2 * 6 * 64 * 4
    assert step.flops == 2 * (6 * layer + 4096 * 320) + 4 * 6 * 5 * 64 * 513


def test_the_drafter_reads_the_output_projection_too(qwen):
    # Its layers have the target's sizes; the fusion of the features belongs to the intake.
    fusion, norms = 5 * 4096 * 4096, 5 * (2 * 4096 + 2 * 128) + 4096
    draft = floors.count_draft_forward(qwen, "jetspec", batch=1, slots=15, context=100)
    assert draft.bytes == 2 * (5 * LAYER + HEAD + norms) + 100 * 2 * 5 * 8 * 128 * 2
    assert draft.flops == 2 * (16 * 5 * LAYER + 15 * HEAD) + 16 * 4 * 5 * 32 * 128 * 101
    intake = floors.count_absorb(qwen, "jetspec", batch=1, rows=16)
    assert intake.bytes == 2 * (fusion + 4096 + 5 * (4096 * 2048 + 128))
    assert intake.flops == 2 * 16 * (fusion + 5 * 4096 * 2048)
    assert floors.count_ranking(qwen, batch=2, slots=15).bytes == 2 * 15 * 151936 * 2
    commit = floors.count_commit(qwen, batch=1, rows=16, feature_layers=5)
    assert commit.bytes == 2 * 16 * (147_456 + 5 * 4096 * 2)


def test_experts_count_as_far_as_tokens_touch_them():
    spec = architecture("qwen3-30b-a3b")
    sparse = abstract_params(
        dataclasses.replace(
            spec, target=dataclasses.replace(spec.target, num_layers=2), drafters=()
        )
    )
    moe, expert = sparse.spec.target.moe, 3 * 2048 * 768
    assert floors.expect_experts(moe, 1) == 8 and floors.expect_experts(moe, 2) == pytest.approx(
        15.5
    )
    one, two = (
        floors.count_target_forward(sparse, batch=1, rows=rows, context=0) for rows in (1, 2)
    )
    assert two.bytes - one.bytes == pytest.approx(2 * 7.5 * expert * 2)
    assert two.flops == pytest.approx(2 * one.flops)
    dense = 2 * (2048 * 4096 + 2048 * 1024 + 4096 * 2048 + 2048 * 128) + 2048 * 151936
    assert one.flops == pytest.approx(2 * (dense + 2 * 8 * expert) + 4 * 2 * 32 * 128)


def test_quantised_weights_count_as_they_are_stored(qwen):
    small = jax.eval_shape(lambda params: quantize_params(params, "int8"), qwen)
    step, plain = (
        floors.count_target_forward(params, batch=1, rows=1, context=0) for params in (small, qwen)
    )
    outputs = 36 * (4096 + 2048 + 4096 + 24576 + 4096) + 151936
    assert step.bytes == 36 * LAYER + HEAD + 2 * NORMS + 4 * outputs
    assert step.flops == plain.flops
