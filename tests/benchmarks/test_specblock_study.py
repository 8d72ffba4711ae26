"""SpecBlock's studies: figures by hand, and a training by a preset."""

import json

import numpy as np
import pytest

import jaxspec
from benchmarks.specblock import compare_trees
from benchmarks.specblock.compare_forms import train_by_preset
from benchmarks.training.held_out import (
    analyse_held_out,
    count_chains,
    describe_slots,
    tabulate_classes,
    tabulate_slots,
)
from jaxspec.io.text.prompt_files import LabelledPrompt
from training.drafters.specblock.slots import SlotLosses

# Two blocks of two slots at two anchors; as chains, the first hits 1 1 0 1 and the second 0 1 1 1.
HIT = np.array([[[[1, 1], [0, 1]]], [[[0, 1], [1, 1]]]], bool)
WANTED = np.array([[[[0, 1], [1, 0]]], [[[1, 3], [0, 2]]]], np.int32)
NAMED = np.array([[[[0, 1], [1, 2]]], [[[0, 2], [3, 3]]]], np.int32)


def count(drafted=None):
    drafted = np.ones_like(HIT) if drafted is None else drafted
    values = np.zeros(HIT.shape, np.float32)
    losses = SlotLosses(values, HIT, HIT, drafted, WANTED, np.eye(4, dtype=np.float32)[NAMED])
    return count_chains(losses, np.ones((1, 2, 4), bool))


def test_classes_count_on_valid_prefixes_alone():
    found = describe_slots(count(), slots=2)
    # Valid are the first three slots of the first chain and the first slot of the second.
    assert found["positions"] == 4 and found["outside"] == 0
    assert np.array(found["confusion"])[:2, :2].tolist() == [[1, 0], [1, 2]]
    first, second, *others = found["classes"]
    assert (first["share"], first["precision"], first["recall"]) == (0.25, 0.5, 1)
    assert first["f1"] == pytest.approx(2 / 3)
    assert (second["share"], second["precision"]) == (0.75, 1)
    assert second["f1"] == pytest.approx(4 / 5)
    assert [one["f1"] for one in others] == [None, None]  # neither wanted nor named
    assert "75.0%" in tabulate_classes(found).to_text()
    # A token that cannot be drafted has no class, and ends the chain.
    drafted = np.ones_like(HIT)
    drafted[0, 0, 0, 1] = False
    without = describe_slots(count(drafted), slots=2)
    assert without["positions"] == 2 and without["outside"] == 1


def test_acceptance_of_slots_given_those_before_and_not():
    found = describe_slots(count(), slots=2)["slots"]
    assert [(one["block"], one["slot"]) for one in found] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert [one["accuracy"] for one in found] == [0.5, 1, 0.5, 1]
    assert [one["accepted"] for one in found] == [0.5, 0.5, 0, 0]
    assert [one["conditional"] for one in found] == [0.5, 1, 0, None]
    assert "2,1" in tabulate_slots({"slots": found}).to_text()


def test_ways_are_compared_on_the_same_prompts(monkeypatch):
    prompts = [LabelledPrompt(domain, "x") for domain in ("a", "b", "a", "b")]
    # (tokens, rounds) of the prompts, domain by domain, by builder and seed.
    counts = {
        ("one", 0): [(8, 2), (8, 2), (6, 2), (6, 2)],
        ("one", 1): [(6, 2), (6, 2), (6, 2), (6, 2)],
        ("two", 0): [(4, 2), (4, 2), (4, 2), (4, 2)],
        ("two", 1): [(4, 2), (4, 2), (4, 2), (4, 2)],
    }

    def count_rounds(bundle, name, given, *, builder, budget, **options):
        assert [prompt.domain for prompt in given] == ["a", "a", "b", "b"]
        pairs = counts[builder, bundle]
        return {"a": pairs[:2], "b": pairs[2:]}

    monkeypatch.setattr(compare_trees, "count_rounds", count_rounds)
    ways = {name: compare_trees.Way(name, (0, 1)) for name in ("one", "two")}
    report = compare_trees.compare_ways(ways, prompts, against="two", budgets=(8,))
    one, two = report["rows"]
    assert (two["tokens_per_round"], two["by_seed"]) == (2, [2, 2])
    assert one["tokens_per_round"] == 52 / 16 and one["by_seed"] == [28 / 8, 3]
    assert one["ratio"] == 52 / 32 and one["ratio_by_seed"] == [28 / 16, 1.5]
    low, high = one["interval"]
    assert low <= 52 / 32 <= high
    assert "3.250" in compare_trees.render_ways(report) and json.dumps(report)


def test_more_blocks_need_no_other_weights():
    params = jaxspec.load("mini")
    more = compare_trees.with_blocks(params, 3)
    assert more.spec.drafter("specblock").depth == 12
    own, same = (one.drafters["specblock"]["params"]["queries"] for one in (more, params))
    assert own is same
    assert set(more.spec.drafter_names) == set(params.spec.drafter_names)


@pytest.mark.slow
def test_a_training_by_a_preset_is_kept_and_analysed(tmp_path):
    text = tmp_path / "text.jsonl"
    tokens = np.random.default_rng(0).integers(5, 4000, (4, 60)).tolist()
    text.write_text(
        "".join(json.dumps({"tokens": one, "prompt_length": 9}) + "\n" for one in tokens)
    )
    given = dict(target="mini", seed=1, steps=1, batch=2, anchors=3)
    params = train_by_preset("specblock-paper-mini", (text,), tmp_path / "run", **given)
    config = params.spec.drafter("specblock")
    assert config.rank_top == 0 and config.qk_norm == params.spec.target.qk_norm
    again = train_by_preset("specblock-paper-mini", (text,), tmp_path / "run", **given)
    assert again.spec.drafters == params.spec.drafters
    prompts = [LabelledPrompt("a", "def f("), LabelledPrompt("b", "The sea")]
    report = analyse_held_out([params, again], "specblock", prompts, 12)
    assert len(report["slots"]) == 8 and len(report["seeds"]) == 2
    assert report["positions"] == 2 * report["seeds"][0]["positions"] > 0
