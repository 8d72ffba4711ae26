"""Targets that several devices share: texts, collectives and memory on eight virtual devices."""

import dataclasses
import itertools
import json

import jax
import numpy as np
import pytest
from sharded_toys import TARGETS, make_params
from two_processes import start_two
from virtual_devices import run_on_devices

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.cli.main import main
from jaxspec.core.mesh import check_mesh
from jaxspec.targets.sharding.shares import (
    choose_experts,
    find_split,
    list_counts,
    share_of,
    widen,
)

DRAFTERS = ("dflash", "jetspec", "dspark", "eagle3", "specblock", "medusa", "parallelspec")
METHODS = (
    "ar",
    "prompt_lookup",
    "suffix",
    *DRAFTERS,
    "falcon",
    "griffin",
    "treeflash",
    "draft_model",
)
QWEN3 = TARGETS["qwen3"]
COUNTS, BATCHES = (2, 4, 8), (1, 4)


def run(request, seconds=600, **variables):
    """What `sharded_decode.py` prints for a request, in a process with eight devices."""
    return json.loads(run_on_devices(8, "sharded_decode.py", request, seconds, **variables))


def list_cases(methods, devices, temperatures, batch):
    """Every combination, as `sharded_decode.py` takes them."""
    return [
        dict(method=method, devices=number, temperature=temperature, batch=batch)
        for method, number, temperature in itertools.product(methods, devices, temperatures)
    ]


def check(result, layers=2, hidden=16, vocab=512, name=""):
    """The text is that of one device; a round exchanges two sums per layer and little else."""
    assert result["found"] == result["expected"], name
    assert result["recompiled"] == 0
    assert result["keys_off"] < 1e-5
    own, whole, copies = result["cache"]
    state, aliased = result["state"]
    assert own < whole * copies and aliased == state  # the program reuses every array of the state
    sums = [x["shape"] for x in result["collectives"] if x["shape"].endswith(f",{hidden}]")]
    sums = [shape for shape in sums if shape.count(",") == 2]  # [B, N, E]
    assert len(sums) == 2 * layers * len(set(sums))  # each width of a verification has its own
    for one in result["collectives"]:
        assert one["kind"] in ("all-reduce", "all-gather"), one
        # No row of logits travels, in float32.
        axes = [int(axis) for axis in one["shape"].split("[")[1][:-1].split(",") if axis]
        assert one["shape"] in sums or one["bytes"] < 4 * vocab * np.prod(axes[:-1]), one


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["gpt_oss", "olmo3", "glm4_moe", "gemma4_text", "mimo_v2_flash"])
def test_sinks_windows_whole_norms_and_shared_experts(family):
    """Two devices, each with some heads and channels, and four with copies of the kv heads."""
    cases = list_cases(["prompt_lookup"], [2, 4], [0.0], 2)
    results = run(dict(family=family, cases=cases, load=[(2, None)]))
    assert results["load 2 None"] == 0
    for devices in (2, 4):
        result = results[f"{devices} prompt_lookup 0.0 2"]
        assert result["found"] == result["expected"]
        assert result["keys_off"] < 1e-5


@pytest.mark.thorough
def test_eight_devices_give_the_text_of_one():
    """Two kv heads for eight devices, tied embeddings, sampling."""
    cases = list_cases(["dflash"], [8], [1.0], 2)
    results = run(dict(family="qwen3", cases=cases, load=[(8, None)]))
    assert results["load 8 None"] == 0
    result = results["8 dflash 1.0 2"]
    check(result)
    assert result["cache"][0] * 8 == result["cache"][1] * result["cache"][2]


# Sizes like those of `mini`, whose fused queries, keys and values 5 does not divide, and odd ones.
COUNTED = [
    ("qwen3", {"num_heads": 5, "num_kv_heads": 1, "ffn_size": 20}, "channel", [1, 5]),
    ("qwen3", {"num_heads": 6, "num_kv_heads": 3, "vocab_size": 509}, "channel", [1]),
    ("llama", {"num_heads": 6, "num_kv_heads": 2, "ffn_size": 18}, "channel", [1, 2, 6]),
    ("qwen3_moe", {"num_heads": 6, "num_kv_heads": 2}, "channel", [1, 2]),
    ("qwen3_moe", {"num_heads": 6, "num_kv_heads": 2}, "expert", [2]),
    ("qwen3_moe", {"num_heads": 5, "num_kv_heads": 5}, "expert", []),
]


@pytest.mark.thorough
def test_advised_numbers_of_devices_work_and_no_others():
    found = run(dict(counts=[case[:3] for case in COUNTED]))
    for (_, _, experts, counts), loads in zip(COUNTED, found.values(), strict=True):
        assert [number for number, load in enumerate(loads, 1) if load == 0] == counts
        advice = f"choose one of {counts}" if counts else "leave `experts` out"
        advice += ", or leave `experts` out" if counts and experts == "expert" else ""
        assert all(load.endswith(advice) for load in loads if load != 0)


@pytest.mark.slow
@pytest.mark.parametrize("family", TARGETS)
def test_files_are_read_as_a_loaded_model_is_placed(family):
    load = list(itertools.product((2, 8), (None, "int8", "fp8")))
    results = run(dict(family=family, load=load))
    assert len(results) == 6 and not any(results.values())


@pytest.mark.slow
def test_whole_experts_are_read_as_a_loaded_model_is_placed():
    load = list(itertools.product((2, 4), (None, "int8")))
    results = run(dict(family="qwen3_moe", load=load, experts="expert"))
    assert len(results) == 4 and not any(results.values())


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kind"), [("qwen3_moe", "int8"), ("llama", "fp8")])
def test_quantised_weights_are_shared(family, kind):
    cases = list_cases(["ar"], [4], [0.0, 1.0], 2)
    for result in run(dict(family=family, cases=cases, quantize=kind)).values():
        check(result)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [None, "int8"])
def test_devices_hold_some_experts_whole(kind):
    """Each computes its own experts on all rows, and the sums that there were add them up."""
    cases = list_cases(["ar", "dflash"], [2, 4], [1.0], 4)
    results = run(dict(family="qwen3_moe", cases=cases, quantize=kind, experts="expert"))
    assert len(results) == 4
    for result in results.values():
        check(result)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "experts"), [("qwen3", "channel"), ("qwen3_moe", "channel"), ("qwen3_moe", "expert")]
)
def test_kernels_run_on_each_device(family, experts):
    """Pallas kernels, interpreted, see the arrays of one device."""
    request = dict(family=family, cases=list_cases(["ar"], [2], [0.0], 1), experts=experts)
    request["sizes"] = {"head_dim": 64}
    (result,) = run(request, JAXSPEC_KERNELS="interpret").values()
    check(result)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "method"), [("qwen3", "eagle3"), ("qwen3_moe", "dflash")])
def test_the_serving_engine_gives_the_texts_of_one_device(family, method):
    ((expected, found, compiled),) = run(dict(family=family, serve=[(8, method)])).values()
    assert len(found) == 4 and found == expected and compiled == 0


@pytest.mark.slow
def test_the_engines_kernel_runs_on_each_device():
    """It takes packed rows of a device's own heads, interpreted."""
    request = dict(family="qwen3", serve=[(2, "dflash")], sizes={"head_dim": 64})
    ((expected, found, compiled),) = run(request, JAXSPEC_KERNELS="interpret").values()
    assert len(found) == 4 and found == expected and compiled == 0


@pytest.mark.slow
def test_a_batch_on_several_devices_shrinks():
    ((expected, found, shrunk),) = run(dict(family="qwen3", shrink=[(8, "dflash")])).values()
    assert shrunk and [len(one) for one in found] == [14, 2, 3, 9]
    assert found == [one[: len(other)] for one, other in zip(expected, found, strict=True)]


@pytest.mark.slow
def test_prompt_lookup_is_mixed_in_on_several_devices():
    cases = list_cases(["dflash", "eagle3"], [2, 4], [0.0, 1.0], 2)
    cases = [case | {"options": {"lookup": True}} for case in cases]
    for result in run(dict(family="qwen3", cases=cases)).values():
        check(result)


@pytest.mark.slow
def test_penalties_are_those_of_one_device():
    """Each device penalises its part of the vocabulary."""
    options = dict(presence_penalty=0.4, repetition_penalty=1.2, min_tokens=6, stop=9)
    cases = [
        case | {"options": options} for case in list_cases(["dflash", "eagle3"], [4], [0.0, 1.0], 2)
    ]
    results = run(dict(family="qwen3", cases=cases))
    for result in results.values():
        check(result)
    assert len(results) == 4


def list_turns(batch, parity):
    """Every drafter on every number of devices, at T = 0 and T = 1 in turn: half of all.

    The other parity is the other half. Over both batches, each parity has both temperatures of a
    drafter on each number of devices.
    """
    first = parity if batch == 1 else 1 + parity
    return [
        case
        for place, method in enumerate(METHODS)
        for turn, devices in enumerate(COUNTS, place + first)
        for case in list_cases([method], [devices], [float(turn % 2)], batch)
    ]


def test_turns_are_all_cases_once():
    names = ("method", "devices", "temperature", "batch")
    cases = [
        tuple(case[name] for name in names)
        for batch in BATCHES
        for parity in (0, 1)
        for case in list_turns(batch, parity)
    ]
    assert len(cases) == len(set(cases))
    assert set(cases) == set(itertools.product(METHODS, COUNTS, (0.0, 1.0), BATCHES))


@pytest.mark.slow
@pytest.mark.parametrize("parity", [0, 1])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("family", TARGETS)
def test_texts_do_not_depend_on_the_devices(family, batch, parity):
    """Every drafter with every batch on every number of devices, greedy and sampled.

    One process runs half of a batch, because compiling for many devices is what takes the time.
    """
    cases = list_turns(batch, parity)
    alone = list_cases(["dflash"], [1], [0.0, 1.0], batch)
    results = run(dict(family=family, cases=cases + alone), seconds=7200)
    assert len(results) == len(METHODS) * len(COUNTS) + 2
    for name, result in results.items():
        if name.startswith("1 "):
            assert result["found"] == result["expected"] and not result["collectives"]
        else:
            check(result, name=name)


def generate(folder, *options):
    """Generate from a prompt in two processes."""
    prompt = [str(folder), "--token-ids", "--prompt", "4 9 2 14"]
    return start_two("generate", *prompt, *options)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A target with a drafter, in memory and in a folder."""
    folder, params = tmp_path_factory.mktemp("target"), make_params("qwen3", ("dflash",))
    jaxspec.save(params, folder)
    return params, folder


@pytest.mark.slow
def test_two_processes_give_the_text_of_one(saved):
    params, folder = saved
    options = dict(temperature=1.0, seed=3, budget=4, max_new_tokens=20, ignore_eos=True)
    expected = jaxspec.decode(params, [4, 9, 2, 14], **group_options(**options)).tokens
    given = ["--temperature", "1", "--seed", "3", "--budget", "4", "--max-new-tokens", "20"]
    processes = generate(folder, *given, "--ignore-eos", "--json")
    for process in processes:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err[-3000:]
        assert json.loads(out.splitlines()[-1])["tokens"] == expected


@pytest.mark.slow
def test_a_process_ends_when_the_other_dies(saved):
    first, second = generate(saved[1], "--max-new-tokens", "200", "--ignore-eos", "--budget", "4")
    try:
        assert second.stdout.read(1)  # both have decoded a token
        second.kill()
        _, err = first.communicate(timeout=120)
        assert first.returncode != 0 and err
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()


def test_a_target_is_widened_to_a_kv_head_per_device():
    wide = widen(QWEN3, 8)
    assert (wide.num_kv_heads, wide.num_heads, wide.tie_embeddings) == (8, 8, False)
    share = share_of(wide, 8)
    assert (share.num_heads, share.num_kv_heads, share.ffn_size) == (1, 1, 2)
    assert widen(QWEN3, 2).num_kv_heads == 2


def test_a_device_holds_the_kv_head_that_its_queries_read():
    """Eight heads of 4 read two kv heads; of four devices, two have the same one."""
    split = find_split(("layers_0", "attention", "qkv", "kernel"), QWEN3, 4)
    heads = split.order.reshape(4, -1, 4)[..., 0] // 4
    assert heads.tolist() == [[0, 1, 8, 10], [2, 3, 8, 10], [4, 5, 9, 11], [6, 7, 9, 11]]


def test_a_bias_after_the_sum_is_on_one_device():
    config = TARGETS["llama"]
    order = find_split(("layers_0", "attention", "o", "bias"), config, 2).order
    assert order.tolist() == [list(range(16)), [-1] * 16]


def test_experts_are_split_by_channel():
    config = TARGETS["qwen3_moe"]
    gate_up = find_split(("layers_1", "mlp", "gate_up"), config, 4)
    assert gate_up.order.tolist() == [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]
    assert gate_up.spec(4) == jax.sharding.PartitionSpec(None, None, "model")
    down = find_split(("layers_1", "mlp", "down"), config, 4).spec(3)
    assert down == jax.sharding.PartitionSpec(None, "model")
    assert find_split(("layers_1", "mlp", "router"), config, 4).axis is None


def test_experts_are_split_whole():
    """The feed-forward channels of dense layers are still shared."""
    config = choose_experts(TARGETS["qwen3_moe"], 4, "expert")
    for name, ndim in (("gate_up", 3), ("down", 3)):
        split = find_split(("layers_1", "mlp", name), config, 4)
        assert split.order is None and split.spec(ndim) == jax.sharding.PartitionSpec("model")
        scales = find_split(("layers_1", "mlp", name), config, 4, scale=True)
        assert scales.spec(2) == jax.sharding.PartitionSpec("model")
    assert find_split(("layers_1", "mlp", "router"), config, 4).axis is None
    assert find_split(("layers_0", "mlp", "gate_up", "kernel"), config, 4).order is not None
    share = share_of(widen(config, 4), 4)
    assert (share.moe.expert_ffn_size, share.moe.devices, share.ffn_size) == (8, 4, 4)


@pytest.mark.parametrize(
    ("family", "devices", "experts", "message"),
    [
        ("qwen3", 2, "expert", "no experts for 2 devices"),
        ("qwen3_moe", 1, "expert", "4 experts for 1 device:"),
        ("qwen3_moe", 8, "expert", "4 experts for 8 devices"),
        ("qwen3_moe", 2, "row", "'row': choose one of channel, expert"),
    ],
)
def test_experts_that_cannot_be_split_are_refused(family, devices, experts, message):
    with pytest.raises(ValueError, match=message):
        choose_experts(TARGETS[family], devices, experts)


@pytest.mark.parametrize(
    ("changes", "devices", "message"),
    [
        ({}, 3, r"8 heads with 2 kv heads: choose one of \[1, 2, 4, 8\]"),
        ({"ffn_size": 6}, 4, r"6 feed-forward channels: choose one of \[1, 2\]"),
        ({"num_heads": 6, "num_kv_heads": 3}, 2, r"choose one of \[1\]"),
    ],
)
def test_devices_that_cannot_share_a_target_are_refused(changes, devices, message):
    config = dataclasses.replace(QWEN3, **changes)
    with pytest.raises(ValueError, match=message):
        widen(config, devices)
    assert devices not in list_counts(config)


def test_a_mesh_of_other_axes_is_refused():
    with pytest.raises(ValueError, match="axes \\('data',\\)"):
        check_mesh(jax.make_mesh((1,), ("data",)))


def test_more_devices_than_there_are_is_an_error(capsys):
    assert main(["generate", "--prompt", "x", "--tp", "99"]) == 2
    assert "--tp is 99: give 1 to" in capsys.readouterr().err
