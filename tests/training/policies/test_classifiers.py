"""Labels of drafted nodes, heads that learn them, and the regression of committed tokens."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from golden_data import SHIPPED

import jaxspec
from jaxspec.bench import demo
from jaxspec.costs.files import save_costs
from jaxspec.costs.round_costs import make_costs
from jaxspec.io.text.prompt_files import LabelledPrompt, read_prompts
from jaxspec.io.text.tokenizer import load_tokenizer
from jaxspec.policies.store import load_policy
from training.policies import classifiers, expected
from training.policies.grid_search import PRESETS, GridOptions, measure_grid
from training.policies.labels import Labels, _goes_this_way, collect, load_labels, save_labels
from training.policies.options import PromptsToAnswer
from training.replay.records import Record, save_record
from training.run.command import parse_with_preset

GOLDEN = SHIPPED / "dflash"


def made_up(count: int = 400) -> Labels:
    """Nodes of eight prompts that are accepted where their path is likely, and fed ones where a
    hidden number is positive.
    """
    rng = np.random.default_rng(0)
    logprob, hidden = (
        -rng.exponential(2.0, count).astype(np.float32),
        rng.normal(size=(count, 6)).astype(np.float16),
    )
    top = -np.sort(-rng.dirichlet(np.ones(12), count)[:, :10], axis=1).astype(np.float32)
    prompt = (np.arange(count) % 8).astype(np.int32)
    return Labels(
        prompt,
        1 + np.arange(count, dtype=np.int32) % 4,
        logprob,
        -np.log(top).mean(1),
        top,
        np.arange(count) // 8 % 2 == 0,
        logprob > -1.0,
        prompt,
        hidden,
        hidden[:, 0] > 0,
    )


def test_a_text_that_ends_says_nothing():
    text = np.array([4, 5, 6])
    ways = [
        _goes_this_way(np.array(path, int), text)
        for path in ([], [4, 5], [4, 5, 6], [4, 5, 6, 7], [4, 9, 6, 7])
    ]
    assert ways == [1, 1, 1, -1, 0]


def test_figures_of_a_classifier():
    found = classifiers.figures(
        np.array([2.0, 1.0, -1.0, -2.0, 0.5]), np.array([True, True, False, False, False])
    )
    assert found == pytest.approx(
        {"accuracy": 0.8, "balanced_accuracy": 5 / 6, "auc": 1.0, "commoner_answer": 0.6}
    )
    tied = classifiers.figures(np.zeros(4), np.array([True, False, True, False]))
    assert tied["auc"] == 0.5 and tied["balanced_accuracy"] == 0.5


def test_balanced_labels_are_as_many_of_each_class():
    data = classifiers.make_examples("c2t", made_up())
    accepted = int(data.accepted.sum())
    assert accepted != len(data.accepted) - accepted
    found = classifiers.balance_examples(data, seed=0)
    count = min(accepted, len(data.accepted) - accepted)
    assert int(found.accepted.sum()) == count == len(found.accepted) - count
    # All of the rarer class, and nothing that was not there.
    rarer = accepted == count
    np.testing.assert_array_equal(found.x[found.accepted == rarer], data.x[data.accepted == rarer])
    assert {tuple(row) for row in found.x} <= {tuple(row) for row in data.x}
    again, other = (classifiers.balance_examples(data, seed=seed).x for seed in (0, 1))
    assert np.array_equal(found.x, again) and not np.array_equal(found.x, other)
    one_class = data._replace(accepted=np.ones_like(data.accepted))
    with pytest.raises(ValueError, match="all labels are of one class"):
        classifiers.balance_examples(one_class, seed=0)


def test_the_published_grid():
    given = ["--drafter", "eagle3", "--prompts", "p", "--out", "o"]
    grid = parse_with_preset(GridOptions, PRESETS, ["--preset", "ltd-paper", *given])
    assert (grid.builder, min(grid.steps), max(grid.steps)) == ("dynamic/w10", 4, 12)
    assert (grid.rows[0] - 1, grid.rows[-1] - 1) == (40, 240)


def test_prompts_of_some_domains(tmp_path):
    path = tmp_path / "prompts.jsonl"
    rows = [{"domain": name, "prompt": [1, 2, 3]} for name in ("code", "math", "code")]
    path.write_text("\n".join(map(json.dumps, rows)))
    params = jaxspec.load(GOLDEN / "target", drafter=GOLDEN / "drafter")
    options = PromptsToAnswer(drafter="d", prompts=path, only=("code",))
    assert [prompt.domain for prompt in options.read(params)] == ["code", "code"]
    with pytest.raises(ValueError, match="has no domain 'cod': did you mean 'code'"):
        dataclasses.replace(options, only=("cod",)).read(params)


def test_prompts_are_held_out_whole():
    training, held = classifiers.split_examples(
        classifiers.make_examples("c2t", made_up()), ["a"] * 8
    )
    assert set(held.prompt) == {3, 7} and not set(held.prompt) & set(training.prompt)
    assert classifiers.make_examples("disco", made_up()).x.shape == (200, 12)
    assert classifiers.make_examples("specdec_plus", made_up()).x.shape == (400, 6)
    # Prompts count within their domain.
    _, held = classifiers.split_examples(
        classifiers.make_examples("c2t", made_up()), ["a", "b"] * 4
    )
    assert set(held.prompt) == {6, 7}
    with pytest.raises(
        ValueError, match="labels of 8 prompts cannot be split: give at least 4 prompts of a domain"
    ):
        classifiers.split_examples(classifiers.make_examples("c2t", made_up()), ["a", "b", "c"] * 3)


def test_labels_of_other_settings_are_refused(tmp_path, monkeypatch):
    path, asked = tmp_path / "labels.npz", [LabelledPrompt("a", [1, 2])]
    params = jaxspec.load(GOLDEN / "target", drafter={"dflash": GOLDEN / "drafter"})
    monkeypatch.setattr(classifiers, "collect", lambda *arguments, **options: made_up())
    options = classifiers.HeadOptions("c2t", tmp_path, prompts=Path("none"), drafter="eagle3")
    classifiers._labels(params, "dflash", asked, options)
    monkeypatch.setattr(
        classifiers, "collect", lambda *arguments, **options: pytest.fail("labelled again")
    )
    np.testing.assert_array_equal(
        classifiers._labels(params, "dflash", asked, options).logprob, made_up().logprob
    )
    with pytest.raises(ValueError, match="was made with depth 9, not 5: give another folder"):
        classifiers._labels(params, "dflash", asked, dataclasses.replace(options, depth=5))
    other = params.replace(
        drafters={"dflash": jax.tree.map(lambda x: 2 * x, params.drafters["dflash"])}
    )
    with pytest.raises(ValueError, match="was made with drafter 'dflash "):
        classifiers._labels(other, "dflash", asked, options)
    with pytest.raises(ValueError, match="was made with prompts '1, "):
        classifiers._labels(params, "dflash", [LabelledPrompt("a", [1, 3])], options)
    np.savez(path, **made_up()._asdict())
    with pytest.raises(ValueError, match="holds no labels, or lacks their settings"):
        load_labels(path)


def test_labels_come_from_trees_of_the_given_width(tmp_path, monkeypatch):
    """`tree_width` shapes the trees, `width` the head."""
    asked = {}
    monkeypatch.setattr(
        classifiers, "collect", lambda *arguments, **options: asked.update(options) or made_up()
    )
    params = jaxspec.load("mini", drafter="dflash", dtype="float32")
    options = classifiers.HeadOptions(
        "specdec_plus", tmp_path, prompts=Path("none"), drafter="eagle3", tree_width=3, width=8
    )
    classifiers._labels(params, "dflash", [LabelledPrompt("a", [1, 2])], options)
    assert asked == {"width": 3, "depth": 9, "budget": 60, "max_new_tokens": 128}


@pytest.mark.slow
@pytest.mark.parametrize("rule", classifiers.RULES)
def test_heads_learn_and_are_saved(tmp_path, monkeypatch, rule):
    monkeypatch.setattr(classifiers, "_labels", lambda *arguments: made_up())
    asked = tmp_path / "prompts.jsonl"
    asked.write_text('{"prompt": [1, 2]}\n' * 8)
    options = classifiers.HeadOptions(
        rule,
        tmp_path,
        prompts=asked,
        drafter="eagle3",
        batch=64,
        epochs=60,
        rate=1e-2,
        width=8,
        threshold=0.4,
    )
    policy, found = classifiers.train_classifier(options)
    if rule != "disco":  # whose features say nothing about these labels
        assert found["balanced_accuracy"] > 0.9 and found["auc"] > 0.95
    loaded = load_policy(tmp_path, about={"drafter": "eagle3"})
    assert loaded.config == policy.config and float(loaded.controls.threshold) == pytest.approx(0.4)
    assert loaded.config.functions() is policy.config.functions()
    with pytest.warns(UserWarning, match="was trained for drafter eagle3"):
        load_policy(tmp_path, about={"drafter": "draft_model"})


@pytest.mark.slow
def test_labels_of_a_decode(tmp_path):
    """Every level of a text's rounds: what is labelled accepted is in the text; acceptance falls
    with the depth.
    """
    params = jaxspec.load("mini", drafter="eagle3", dtype="float32")
    prompts = [
        prompt.content
        for prompt in read_prompts(demo.DEMO_PROMPTS, load_tokenizer(params.spec.tokenizer))
    ]
    labels = collect(
        params, "eagle3", prompts, batch=2, budget=12, depth=4, width=3, max_new_tokens=24
    )
    assert set(labels.prompt) == {0, 1, 2} and set(labels.depth) == {1, 2, 3}
    assert labels.hidden.shape == (len(labels.fed_accepted), 320) and labels.top.shape == (
        len(labels.depth),
        10,
    )
    per_round = [labels.accepted[labels.depth == depth].sum() for depth in (1, 2, 3)]
    assert per_round[0] >= per_round[1] >= per_round[2] > 0
    # One node of a level at most is accepted: at most a third of three. The likeliest is accepted
    # most often.
    assert labels.accepted[labels.depth == 1].mean() <= 1 / 3
    assert labels.best.mean() == pytest.approx(1 / 3, abs=0.02)
    assert labels.accepted[labels.best].mean() > 2 * labels.accepted[~labels.best].mean()
    assert np.all(labels.top[:, 0] <= 1) and np.all(np.diff(labels.top) <= 0)
    save_labels(labels, tmp_path / "labels.npz")
    np.testing.assert_array_equal(load_labels(tmp_path / "labels.npz").logprob, labels.logprob)
    tokens, rounds, seconds = measure_grid(
        params,
        "eagle3",
        prompts[:1],
        [(0, 2), (2, 8)],
        1,
        depth=3,
        budget=8,
        builder="dynamic/w3",
        max_new_tokens=16,
    )
    assert tokens.tolist() == [15, 15] and rounds[1] <= rounds[0] and np.all(seconds > 0)


def recorded(count: int = 400) -> Record:
    """Positions whose rounds commit more the likelier the tree's first path is."""
    rng = np.random.default_rng(1)
    first = rng.random(count)
    scores = np.log(np.stack([first, first * rng.random(count) + 1e-4], axis=1)).astype(np.float16)
    committed = np.stack([np.ones(count), 1 + (first > 0.5), 1 + 2 * (first > 0.5)], axis=1).astype(
        np.int8
    )[:, None]
    header = {
        "model": "m",
        "drafter": "d",
        "builder": "b",
        "sees": "tree",
        "sizes": [1, 2, 3],
        "domains": ["x"] * 8,
        "score_scale": 1.0,
    }
    whole, prompt = np.full(count, 100, np.int32), np.sort(np.arange(count, dtype=np.int32) % 8)
    order = np.tile(np.arange(2, dtype=np.int16), (count, 1))
    return Record(header, scores, committed, whole, whole, prompt, order)


def test_regression_reads_scores_in_the_order_of_rows():
    """Of a pool after one step, whose tree has other scores than the policy reads: rows are the
    candidates 3, 0 and 5 here, and candidates of the second step come after them.
    """
    header = {"sees": "pool", "width": 2, "sizes": [2, 4], "steps": 2, "score_scale": 1.0}
    probability = np.array([[0.5, 0.1, 0.02, 0.3, 0.04, 0.2, 0.9, 0.9, 0.9, 0.9]])
    order = np.array([[6, 3, 7, 0, 8, 5, 9, 1, 2, 4]], np.int16)
    one = np.full(1, 1000, np.int32)
    committed = np.arange(6, dtype=np.int8).reshape(1, 3, 2)
    record = Record(header, np.log(probability), committed, one, one, 0 * one, order)
    x, y = expected.make_regression_examples(record, 1)
    np.testing.assert_allclose(x, [[0.3, 0.5, 0.2, 1.0]], rtol=1e-6)
    assert y.tolist() == [[2, 3]]


def test_ridge_is_the_minimum_of_its_objective():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 3)), rng.normal(size=(50, 2))
    (layer,) = expected.fit_ridge(x, y, 0.1)
    kernel, bias = np.asarray(layer["kernel"], np.float64), np.asarray(layer["bias"], np.float64)
    rest = x @ kernel + bias - y
    np.testing.assert_allclose(x.T @ rest / 50 + 0.1 * kernel, 0, atol=1e-5)
    np.testing.assert_allclose(rest.mean(0), 0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [0, 16])
def test_regression_finds_what_scores_explain(tmp_path, hidden):
    save_record(recorded(), tmp_path / "record.npz")
    save_costs(make_costs((1, 2, 3), (0,), (1.0,), [[1.0], [1.1], [1.2]]), tmp_path / "table.json")
    options = expected.RegressionOptions(
        tmp_path / "record.npz",
        tmp_path / "table.json",
        tmp_path / "policy",
        hidden=hidden,
        steps=800,
    )
    policy, found = expected.train_regression(options)
    assert found["sizes"] == [1, 2, 3] and found["positions"] == 300 and found["held_out"] == 100
    assert min(found["explained"][1:]) > (0.65 if hidden else 0.6)
    x, y = expected.make_regression_examples(recorded(), 0)
    assert x.shape == (400, 3) and y.shape == (400, 3)
    assert policy.config.score_scale == 1.0
    assert dataclasses.asdict(load_policy(tmp_path / "policy").config) == dataclasses.asdict(
        policy.config
    )
