"""Sweeps: what they compare, the table they end in, and that finished runs are kept."""

import dataclasses
import json

import numpy as np
import pytest

from benchmarks.training import sweep
from benchmarks.training.pairs import paired_tables
from benchmarks.training.recipes import SCALES, SWEEPS, Recipe, list_measurements
from benchmarks.training.report import collect_comparison, write_report
from benchmarks.training.sweep import SweepOptions, make_drafter_options


def results_of(recipes, lengths):
    return [
        {
            "recipe": {
                name: getattr(recipe, name)
                for name in ("kind", "loss", "gamma", "data", "seed", "variant")
            },
            "acceptance": {
                "chain@8": {"math": length, "mean": length},
                "tree@8": {"math": length + 1, "mean": length + 1},
            },
            "train_seconds": 50.0,
            "evaluate_seconds": 10.0,
            "device": "cpu",
            "jax": "0",
        }
        for recipe, length in zip(recipes, lengths, strict=True)
    ]


def test_sweeps_cover_the_comparisons_with_two_seeds_and_no_run_twice():
    names = [recipe.name for recipe in SWEEPS["all"]]
    assert len(names) == len(set(names)) == 13
    for name in ("objective", "causality"):
        assert {recipe.seed for recipe in SWEEPS[name]} == {0, 1}
        assert set(SWEEPS[name]) <= set(SWEEPS["all"])
    assert {recipe.loss for recipe in SWEEPS["objective"]} == {"fkl", "ce", "rkl"}
    assert {(recipe.kind, recipe.gamma) for recipe in SWEEPS["causality"]} == {
        (kind, gamma) for kind in ("jetspec", "dflash") for gamma in (None, 7.0)
    }


def test_recipes_differ_only_in_what_is_compared(tmp_path):
    options = SweepOptions("all", tmp_path / "corpus", tmp_path / "prompts", tmp_path)
    one, other = (
        make_drafter_options(Recipe(loss=loss), options, SCALES["small"]) for loss in ("fkl", "rkl")
    )
    assert (
        one.loss.kind == "fkl"
        and other.loss.kind == "rkl"
        and one.model == other.model
        and one.data == other.data
    )
    text = make_drafter_options(Recipe(data="corpus"), options, SCALES["small"])
    assert text.data.files == (tmp_path / "corpus",) and one.data.files == (
        tmp_path / "regenerated.jsonl",
    )
    assert text.cache_features != one.cache_features


def test_weights_and_rates_by_the_paper(tmp_path):
    """Blocks of 8 and 16 with four weights each; AdamW's rates; scores of 1 and trees of width 7."""
    options = SweepOptions(
        "weights", tmp_path / "c", tmp_path / "p", tmp_path, as_published=True, seeds=(0, 1, 2)
    )
    recipes, scale = options.recipes(), SCALES["small"]
    assert len({recipe.name for recipe in recipes}) == len(recipes) == 3 * 16
    by_block = {block: [one for one in recipes if one.block == block] for block in (8, 16)}
    for block, own in by_block.items():
        assert {one.gamma for one in own} == {None, 2.0, 4.0, 7.0}
        made = make_drafter_options(own[0], options, scale)
        assert made.model.block_size == block and made.model.score_temperature == (1.0, 1.0)
    assert make_drafter_options(Recipe(), SweepOptions("data", *[tmp_path] * 3), scale).model == (
        dataclasses.replace(
            make_drafter_options(Recipe(), options, scale).model, score_temperature=(0.4, 0.5)
        )
    )
    assert list_measurements("jetspec", 8, True)["expand@64"]["builder"] == "expand/w7"
    assert list_measurements("jetspec", 8)["expand@64"]["builder"] == "expand"
    rated = Recipe(rate=6e-4)
    assert rated in SWEEPS["rates"] and rated.name.endswith("-rate0.0006-seed0")
    optimizer = make_drafter_options(rated, options, scale).optimizer
    assert (optimizer.name, optimizer.rate) == ("adamw", 6e-4)
    assert make_drafter_options(Recipe(), options, scale).optimizer.name == "muon"
    mixed = results_of([Recipe(), by_block[16][0], rated], [1.0, 2.0, 3.0])
    for result, recipe in zip(mixed, [Recipe(), by_block[16][0], rated], strict=True):
        result["recipe"] = dataclasses.asdict(recipe)
    assert list(collect_comparison("Objective (JetSpec, Table 4)", mixed)) == ["forward KL"]
    found = collect_comparison("Learning rates (JetSpec, Table 3)", mixed)
    assert {label: by["chain@8"][0]["mean"] for label, by in found.items()} == {
        "AdamW, 0.0006": 3.0
    }
    title = "Depth weights, blocks of 16 (JetSpec, Table 7)"
    assert list(collect_comparison(title, mixed)) == ["causal, uniform"]


def test_report_averages_seeds_and_draws_the_curves(tmp_path):
    recipes = [Recipe(loss=loss, seed=seed) for loss in ("fkl", "rkl") for seed in (0, 1)]
    for recipe in recipes:
        (tmp_path / recipe.name).mkdir()
        points = [{"step": step, "tau_mean": 1 + step / 100} for step in (10, 20)]
        (tmp_path / recipe.name / "metrics.jsonl").write_text(
            "".join(json.dumps(point) + "\n" for point in points)
        )
    results = results_of(recipes, [3.0, 3.2, 2.0, 2.0])
    write_report(tmp_path, "objective", "small", {"steps": 20}, results)
    page = (tmp_path / "results.md").read_text()
    assert "| forward KL | 2 | chain@8 | 3.10 ± 0.10 | 3.10 ± 0.10 |" in page
    assert "| reverse KL | 2 | tree@8 | 3.00 ± 0.00 | 3.00 ± 0.00 |" in page
    assert "Table 4" in page and "Table 7" not in page and "4 runs, 4 minutes on cpu" in page
    assert json.loads((tmp_path / "results.json").read_text())["runs"] == results
    assert (tmp_path / "results.png").stat().st_size > 0
    found = collect_comparison(
        "Training text (JetSpec, Table 6)",
        results_of([Recipe(), Recipe(data="corpus")], [3.0, 2.0]),
    )
    assert np.mean([by["mean"] for by in found["corpus text"]["chain@8"]]) == 2.0


def test_finished_runs_are_kept(tmp_path, monkeypatch):
    options = SweepOptions("data", tmp_path / "corpus", tmp_path / "prompts", tmp_path)
    (tmp_path / Recipe().name).mkdir()
    settings = {
        "target": options.target,
        "prompts": "prompts",
        "scale": dataclasses.asdict(SCALES["small"]),
    }
    kept = {"kept": True, "settings": settings}
    (tmp_path / Recipe().name / "result.json").write_text(json.dumps(kept))
    monkeypatch.setattr(sweep, "train_drafter", lambda options: pytest.fail("trained again"))
    assert sweep.run_recipe(Recipe(), options, SCALES["small"]) == kept
    with pytest.raises(
        ValueError,
        match="result.json was made with target 'mini', not 'other': give another folder",
    ):
        sweep.run_recipe(Recipe(), dataclasses.replace(options, target="other"), SCALES["small"])
    with pytest.raises(ValueError, match="was made with scale"):
        sweep.run_recipe(Recipe(), options, SCALES["full"])


def test_programs_of_a_finished_run_are_dropped(tmp_path, monkeypatch):
    """A process that keeps those of several runs reaches the limit of its memory maps."""
    calls = []
    monkeypatch.setattr(sweep, "regenerate", lambda options: None)
    monkeypatch.setattr(sweep, "run_recipe", lambda recipe, *rest: calls.append(recipe.data))
    monkeypatch.setattr(sweep, "write_report", lambda *given: None)
    monkeypatch.setattr(sweep.jax, "clear_caches", lambda: calls.append("dropped"))
    (tmp_path / "results.md").write_text("")
    sweep.main(SweepOptions("data", tmp_path / "corpus", tmp_path / "prompts", tmp_path))
    assert calls == ["regenerated", "dropped", "corpus", "dropped"]


def test_parts_of_dspark_are_compared_on_equal_budgets(tmp_path):
    options = SweepOptions("conditioning", tmp_path / "corpus", tmp_path / "prompts", tmp_path)
    recipes, scale = SWEEPS["conditioning"], SCALES["small"]
    assert {recipe.seed for recipe in recipes} == {0, 1, 2}
    made = {recipe.name: make_drafter_options(recipe, options, scale) for recipe in recipes}
    assert len(made) == len(recipes) == 27
    joint, frozen = (
        Recipe("dspark", gamma=4.0, variant=variant, seed=1) for variant in ("joint", "frozen")
    )
    one, other = made[joint.name], made[frozen.name]
    assert one.init is None and one.loop.steps == scale.steps == 3 * other.loop.steps
    # The heads go on the DFlash drafter of the same seed, which is trained before.
    names = list(made)
    assert other.init == tmp_path / frozen.backbone.name / "drafter"
    assert names.index(frozen.backbone.name) < names.index(frozen.name)
    assert other.method["dspark"].freeze_backbone and not one.method["dspark"].freeze_backbone
    assert (other.batch, other.anchors, other.data) == (one.batch, one.anchors, one.data)
    methods = list_measurements("dspark", scale.block_size)
    assert {f"lattice@{n}" for n in (8, 16, 32, 64)} <= set(methods)
    found = collect_comparison(
        "Nodes conditioned on their branch (DSpark and its parts)",
        results_of(
            [joint, Recipe("dflash", gamma=4.0), Recipe("eagle3", variant="steps7")],
            [3.0, 2.0, 2.5],
        ),
    )
    assert list(found) == ["dspark", "dflash", "eagle3"]


def counted(recipe, counts):
    """Make the result of a recipe from {method: {domain: [(tokens, rounds), …]}}."""
    return results_of([recipe], [0.0])[0] | {"counts": counts}


def test_trees_are_compared_on_the_same_prompts():
    ours = {"math": [(40, 10), (30, 10)], "code": [(20, 10), (20, 5)]}
    # On every prompt, half as many tokens a round.
    theirs = {
        domain: [(tokens, 2 * rounds) for tokens, rounds in pairs] for domain, pairs in ours.items()
    }
    other = {"math": [(10, 10), (30, 10)], "code": [(20, 10), (20, 5)]}
    runs = [
        counted(Recipe("dspark", gamma=4.0, variant="joint", seed=seed), {"lattice@8": ours})
        for seed in (0, 1)
    ]
    runs += [counted(Recipe("dflash", gamma=4.0), {"tree@8": theirs, "chain@8": other})]
    lines = paired_tables(runs, lambda recipe: recipe["kind"])
    assert "T=0" in lines[1] and "| dspark | lattice (tokens a round) | 3.08 |" in lines
    assert "| dflash | tree | 2.00 [2.00, 2.00] |" in lines
    # By hand: mean of 3.5 and 2.67 over mean of 2 and 2.67; one prompt of four differs.
    row = next(line for line in lines if line.startswith("| dflash | chain"))
    assert row.startswith("| dflash | chain | 1.32 [1.00, ")
    # Other temperatures get tables of their own, and nothing is compared without the lattice.
    sampled = counted(Recipe("dspark"), {"lattice@8, T=1": ours})
    assert any(line.endswith("T=1") for line in paired_tables([*runs, sampled], lambda r: "dspark"))
    assert paired_tables(runs[2:], lambda recipe: "dflash") == []
