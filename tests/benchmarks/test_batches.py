"""Replays of full engines on modelled costs: exact where a hand can calculate, and in order."""

import json
import re

import numpy as np
import pytest
from short_models import load_short

import jaxspec
from benchmarks.__main__ import main
from benchmarks.serving.model_batches import find_crossover, model_batches, model_costs
from benchmarks.serving.recorded_trees import Trees, record_trees
from benchmarks.serving.replay import replay
from jaxspec.bench.architectures import ARCHITECTURES
from jaxspec.call.options import group_options
from jaxspec.costs.roofline import DEVICES
from jaxspec.costs.shared_roofline import forward_seconds
from jaxspec.serve.on_device.slot_rounds import Rules
from jaxspec.tuner.serving.costs import Costs

TEXTS, TOKENS, ROWS = 3, 40, 8


def make_trees(probability, seed=0):
    """Chains whose every draft token is accepted with a probability that the drafter knows."""
    draws = np.random.default_rng(seed).random((TEXTS, TOKENS, ROWS)) < probability
    draws[..., 0] = True
    depth = np.broadcast_to(np.arange(ROWS, dtype=np.int32), draws.shape)
    logprob = (depth * np.log(probability)).astype(np.float32)
    return Trees(logprob, depth, np.logical_and.accumulate(draws, axis=-1))


def run(trees, rule, slots, costs, edges, budget=ROWS, rounds=400):
    return replay(trees, slots, Rules(rule, edges), costs, budget=budget, rounds=rounds)


def test_plain_rounds_give_every_slot_a_token():
    found = run(make_trees(0.8), "ar", 4, Costs((9.0,), (0.5,)), (32,))
    assert found == pytest.approx((4 / 0.5, 1.0, 4.0, 0.0))


@pytest.mark.slow
def test_whole_trees_give_what_was_accepted():
    trees = make_trees(0.5)
    found = run(trees, "fixed", 4, Costs((2.0,), (0.5,)), (32,), rounds=4000)
    assert found.rows == 32 and found.drafted == 1
    assert found.tokens_per_second == pytest.approx(4 * found.tokens_per_round / 2.0)
    assert found.tokens_per_round == pytest.approx(trees.accepted.sum(-1).mean(), rel=0.1)
    half = run(trees, "fixed", 4, Costs((2.0,), (0.5,)), (16,), budget=4)
    assert half.tokens_per_round < found.tokens_per_round and half.rows == 16


def test_rows_follow_the_costs():
    trees, edges = make_trees(0.8), (4, 8, 16, 32)
    free, dear = Costs((1.0,) * 4, (1.0,)), Costs((1.0, 2.0, 4.0, 8.0), (1.0,))
    assert run(trees, "global", 4, free, edges).rows > 30
    assert run(trees, "global", 4, dear, edges).rows < 9


def test_a_drafter_that_does_not_pay_costs_little():
    trees, edges = make_trees(0.1), (4, 32)
    costs = Costs((3.0, 3.5), (1.0,))
    plain, found = (run(trees, rule, 4, costs, edges, rounds=2000) for rule in ("ar", "global"))
    assert found.drafted < 0.03
    assert found.tokens_per_second > 0.96 * plain.tokens_per_second


def test_costs_are_those_of_the_roofline_and_of_reading_a_drafter():
    costs = model_costs("qwen3-8b", "h100", 16, (256, 1024), 1024)
    target, rates = ARCHITECTURES["qwen3-8b"], DEVICES["h100"]
    plain = forward_seconds(target, rates, 1, batch=16, rows=1, context=1024)
    assert costs.plain == (plain,)
    assert 0.2e-3 < costs.drafted[0] - plain < 1e-3 and costs.drafted[1] > costs.drafted[0]
    whole = forward_seconds(target, rates, 1, batch=16, rows=16, context=1024)
    assert costs.drafted[0] > whole


@pytest.mark.slow
def test_budgets_that_win_alone_lose_in_a_batch():
    records = model_batches(
        make_trees(0.3), [1, 64, 256], arch="qwen3-8b", device="h100", context=1024, samples=64
    )
    rules = ["ar", "fixed 8", "equal", "global"]
    assert [one["rule"] for one in records[:4]] == rules and len(records) == 12
    assert find_crossover(records, "fixed 8") in (64, 256)
    assert find_crossover(records, "ar") is None


@pytest.mark.slow
def test_recorded_trees_accept_what_decoding_does():
    params = load_short()
    prompt, options = list(range(50, 60)), dict(max_new_tokens=12, ignore_eos=True, budget=6)
    trees = record_trees(params, [prompt], tokens=6, budget=6)
    assert trees.logprob.shape == trees.depth.shape == trees.accepted.shape == (1, 6, 6)
    assert trees.accepted[..., 0].all() and (trees.logprob[..., 0] == 0).all()
    first = jaxspec.decode(params, prompt, trace=True, **group_options(**options)).rounds[0]
    assert trees.accepted[0, 0].sum() == len(first.path)
    np.testing.assert_allclose(trees.logprob[0, 0], first.tree.logprob, atol=1e-4)


@pytest.mark.slow
def test_the_command(tmp_path, capsys):
    file = tmp_path / "batches.json"
    given = ["--drafter", "dflash", "--budget", "8", "--tokens", "4", "--limit", "2"]
    assert main(["batches", *given, "--batches", "1,2", "--json", str(file)]) == 0
    assert len(json.loads(file.read_text())["records"]) == 8
    assert "Tokens a second" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--arch", "qwen9"], "unknown architecture 'qwen9'"),
        (["--device", "t4"], "unknown device 't4'"),
    ],
)
def test_bad_options_are_refused(capsys, given, says):
    assert main(["batches", *given]) != 0
    assert re.search(says, capsys.readouterr().err)
