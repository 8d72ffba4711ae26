"""BlockPilot's labels against recorded ones; a predictor that learns what can be learned, and what
is printed beside it.
"""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from golden_data import SHIPPED

import jaxspec
from benchmarks.training import blockpilot_study
from benchmarks.training.blockpilot_report import (
    CONSTANT,
    FIXED,
    TOLD,
    BlockChoice,
    difference,
    render_rows,
    report,
)
from jaxspec.call.options import group_options
from jaxspec.costs.round_costs import make_costs
from jaxspec.io.text.prompt_files import LabelledPrompt
from jaxspec.policies.store import load_policy
from training.policies import blockpilot
from training.policies.block_costs import (
    BlockCosts,
    BlockCostsOptions,
    load_block_costs,
    measure_blocks,
    predictor_bytes,
    save_block_costs,
)
from training.policies.block_replay import committed_rounds
from training.policies.blockpilot_data import (
    Answers,
    answer,
    best_of,
    labels_of,
    neighbourhood,
    split_prompts,
)
from training.policies.blockpilot_fit import fit_predictor, loss_of, predicted, targets
from training.policies.blockpilot_problem import PRESETS, BlockPilotOptions, BlockPilotProblem
from training.run.command import parse_with_preset

GOLDEN = SHIPPED
RECORDED = np.load(GOLDEN / "blockpilot" / "blockpilot.npz")
TIMES = BlockCosts(
    make_costs((3,), (0, 100), 0.0, [[[1, 2]], [[2, 4]]], plain=1.0, blocks=(2, 3)),
    make_costs((3,), (0, 100), 0.0, [[[1.5, 2.5]], [[2, 4]]], plain=1.0, blocks=(2, 3)),
    {"all": 0.5},
)


def made_up() -> Answers:
    """Five prompts of ten cached tokens: six tokens each, in rounds as long as the lists."""
    rounds = [
        [[1] * 6, [3, 3]],
        [[2] * 3, [1] * 6],
        [[2] * 3, [3, 3]],
        [[2] * 3, [1] * 6],
        [[1] * 6, [3, 3]],
    ]
    one_seed = [[[of_size] for of_size in own] for own in rounds]
    return Answers(
        np.zeros((5, 4), np.float32),
        one_seed,
        np.full(5, 10),
        np.array([2, 3]),
        np.array(["a"] * 5),
    )


def test_labels_are_those_of_the_paper():
    cycles, count = RECORDED["lab_cycles"].astype(np.int64), RECORDED["lab_ncycles"]
    committed = [
        [[row[:n].tolist()] for row, n in zip(*own, strict=True)]
        for own in zip(cycles, count, strict=True)
    ]
    answers = Answers(None, committed, None, RECORDED["lab_candidates"], None)
    np.testing.assert_allclose(answers.length, RECORDED["lab_mean"])
    classes = labels_of(answers.length)
    np.testing.assert_array_equal(classes, RECORDED["lab_class"])
    np.testing.assert_array_equal(answers.sizes[classes], RECORDED["lab_block"])
    tied = best_of(answers.length).sum(1)
    np.testing.assert_array_equal(tied, RECORDED["lab_ntied"])
    assert tied.max() > 1, "ties go to the smallest block"


def test_sizes_around_the_trained_one():
    assert neighbourhood(16) == (14, 15, 16, 17, 18) and neighbourhood(3, 2) == (2, 3, 4, 5)


def test_every_domain_is_split_alike():
    domains = np.array(["a", "b"] * 10)
    parts = split_prompts(domains)
    assert [len(part) for part in parts] == [12, 4, 4]
    assert sorted(np.concatenate(parts).tolist()) == list(range(20))
    assert [len(part) for part in split_prompts(domains, test=False)] == [16, 4, 0]
    with pytest.raises(ValueError, match="4 prompts cannot be split: give at least 5"):
        split_prompts(np.array(["a"] * 4))


def test_rounds_are_charged_the_times_of_their_size_and_context():
    answers = made_up()
    # Cached tokens before each round of the second prompt: 10, 12, 14; a size's seconds grow by 1
    # or 2 in 100 tokens.
    expected = [3 + 0.36, 6 * 2 + 2 * (10 + 11 + 12 + 13 + 14 + 15) / 100]
    np.testing.assert_allclose(answers.seconds(TIMES.single)[1], expected)
    chosen = answers.choose([3])
    assert chosen.committed[0] == [[[3, 3]]] and chosen.sizes.tolist() == [3]
    both = answers.take(np.array([0])).joined(answers.take(np.array([2, 1])))
    assert both.committed == [answers.committed[i] for i in (0, 2, 1)] and len(both.logits) == 3


def test_samples_count_together_and_begin_at_the_prompt():
    """Two answers of one prompt: 2 + 1 rounds, 5 tokens; each begins with ten cached tokens."""
    domains = np.array(["a"])
    sampled = Answers(None, [[[[1, 2], [2]]]], np.array([10]), np.array([2]), domains)
    assert sampled.rounds.tolist() == [[3]] and sampled.tokens.tolist() == [[5]]
    assert sampled.length.tolist() == [[5 / 3]]
    costs = make_costs((3,), (0, 100), 0.0, [[[1, 2]]], plain=1.0, blocks=(2,))
    np.testing.assert_allclose(sampled.seconds(costs), [[3 + 0.10 + 0.11 + 0.10]])


def test_results_are_named_by_what_decides_them(tmp_path):
    """Runs of other networks, reaches or temperatures must not replace one another."""
    options = blockpilot_study.StudyOptions(
        out=tmp_path, prompts=tmp_path, drafter="some/dflash", widths=(1024, 4096), depths=(1, 3),
        reaches=(1, 3), samples=3, temperature=1.0,
    )  # fmt: skip
    runs = blockpilot_study.ablations(options)
    assert [one.reach for one in runs[:2]] == [3, 1], "the widest first"
    assert [(one.width, one.layers) for one in runs[2:]] == [
        (1024, 2), (4096, 2), (2048, 1), (2048, 3),
    ]  # fmt: skip
    names = {blockpilot_study.name_result(one, neighbourhood(8, one.reach)) for one in runs}
    assert len(names) == len(runs)
    assert "dflash, 7 8 9, acceptance, 2 layers of 2048, T=1, 3 samples" in names
    assert blockpilot_study.ablations(dataclasses.replace(runs[0])) == []


def test_several_samples_need_sampled_text(tmp_path):
    with pytest.raises(ValueError, match="samples is 2 at temperature 0: give 1, or a"):
        blockpilot.train_blockpilot(
            BlockPilotOptions(out=tmp_path, prompts=tmp_path / "none", drafter="dflash", samples=2)
        )


def test_the_published_form_fills_the_command_line(tmp_path):
    given = ["--out", str(tmp_path), "--prompts", str(tmp_path), "--drafter", "dflash"]
    paper = parse_with_preset(BlockPilotOptions, PRESETS, ["--preset", "blockpilot-paper", *given])
    assert (paper.width, paper.layers, paper.reach, paper.temperature) == (2048, 2, 2, 1.0)
    assert paper.samples > 1 and paper.scale == "raw" and paper.reduction == "all"
    assert parse_with_preset(BlockPilotOptions, PRESETS, given).temperature == 0


def test_the_memory_of_a_predictor():
    """The paper's 315.4 million parameters, of Qwen3's 151,936 logits and five sizes."""
    options = BlockCostsOptions(Path("t"), (14, 15, 16, 17, 18), drafter="dflash", rank=256)
    memory = predictor_bytes(151_936, options)
    assert memory["all"] / 4 == 151_936 * 2048 + 2048 + 2048 * 2048 + 2048 + 2048 * 5 + 5
    assert memory["projection"] - memory["top"] == 4 * 151_936 * 257


def test_what_stands_beside_a_prediction():
    answers = made_up()
    problem = BlockPilotProblem(
        None, "dflash", 2, answers, (np.arange(3), np.array([3]), np.array([3, 4])), TIMES
    )
    found = blockpilot_study.constants(problem, "acceptance")
    # Mean tokens a round of the training prompts: 5/3 with the small block, 7/3 with the large one,
    # commonest by 2 : 1.
    assert [found[name].classes[0, 0] for name in (FIXED, "trained size", "commonest label")] == [
        1,
        0,
        1,
    ]
    assert found["oracle"].classes.tolist() == [[0, 1]]
    scored = blockpilot.score_choices(problem, "acceptance", np.array([1, 1]))
    assert {name: row["block"] for name, row in scored.items()} == {
        "best fixed size": 3,
        "BlockPilot": 3,
        "trained size": 2,
        "oracle": 2.5,
    }
    assert scored["oracle"]["score"] == answers.length[3:].max(1).mean()
    assert scored["BlockPilot"]["score"] == answers.length[3:, 1].mean()
    choices = found | {"mine": BlockChoice(np.array([[0, 1], [1, 1]]), "all")}
    test = answers.take(problem.parts[2])
    rows = report(test, choices, best_of(test.length), TIMES)
    assert rows[FIXED]["rounds"] == {
        "value": 12 / 8,
        "ratio": 1.0,
        "interval": [1.0, 1.0],
        "seeds": [1.0],
    }
    assert rows["oracle"]["rounds"]["ratio"] == 8 / 5 and rows["oracle"]["best"] == 1.0
    assert rows["mine"]["rounds"]["ratio"] == pytest.approx(8 / 6.5) and rows["mine"]["rounds"][
        "seeds"
    ] == [8 / 5, 1.0]
    assert rows["mine"]["best"] == 0.75 and rows["mine"]["block"] == 2.75
    low, high = rows["mine"]["rounds"]["interval"]
    assert low <= 8 / 6.5 <= high
    assert difference(test, choices["mine"], choices["oracle"], "rounds")["ratio"] == pytest.approx(
        5 / 6.5
    )
    assert any(
        line.startswith("mine") and "+23.08" in line for line in render_rows(rows).splitlines()
    )


def test_constants_and_predictions_are_charged_differently():
    answers = made_up()
    choices = {
        FIXED: BlockChoice(np.zeros((1, 5), int), CONSTANT),
        "mine": BlockChoice(np.zeros((1, 5), int), "all"),
    }
    choices["oracle"] = BlockChoice(np.zeros((1, 5), int), TOLD)
    rows = report(answers, choices, best_of(answers.length), TIMES)
    single, chosen = (answers.seconds(costs)[:, 0].sum() for costs in TIMES[:2])
    assert rows["mine"]["choice"]["ratio"] == 1.0 and rows[FIXED]["deployed"][
        "value"
    ] == pytest.approx(30 / single)
    assert rows["mine"]["deployed"]["value"] == pytest.approx(30 / (chosen + 5 * 0.5)), (
        "a prediction for each prompt"
    )
    assert rows["oracle"]["deployed"]["value"] == pytest.approx(30 / chosen)


def test_times_are_kept(tmp_path):
    save_block_costs(TIMES, tmp_path / "times.json")
    found = load_block_costs(tmp_path / "times.json", (2, 3))
    assert found.predict == TIMES.predict
    for own, kept in zip(found[:2], TIMES[:2], strict=True):
        assert own.fingerprint == kept.fingerprint and own.blocks == (2, 3)
    with pytest.raises(ValueError, match=r"holds block sizes \[2, 3\], not \[2, 4\]"):
        load_block_costs(tmp_path / "times.json", (2, 4))
    (tmp_path / "times.json").write_text("{}")
    with pytest.raises(ValueError, match="holds no block costs"):
        load_block_costs(tmp_path / "times.json", (2, 3))


def test_features_are_shuffled_within_their_part():
    x, parts = np.arange(10.0)[:, None], (np.arange(6), np.arange(6, 8), np.arange(8, 10))
    found = blockpilot_study.shuffled(x, parts, 0)
    assert not np.array_equal(found, x)
    for part in parts:
        assert sorted(found[part, 0]) == list(part)


def test_what_is_trained_for():
    score = np.array([[2.0, 1.0, 2.0], [1.0, 4.0, 3.0]])
    label, regret = targets(score, "label"), targets(score, "regret")
    np.testing.assert_array_equal(label, [[1, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(regret, [[0, 50, 0], [75, 0, 25]])
    # A network of one layer that says the same of everything: all sizes are equally probable.
    layers = [{"kernel": np.zeros((4, 3), np.float32), "bias": np.zeros(3, np.float32)}]
    assert float(loss_of(layers, np.ones((2, 4)), label)) == pytest.approx(np.log(3))
    assert float(loss_of(layers, np.ones((2, 4)), regret, objective="regret")) == pytest.approx(25)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["label", "regret"])
def test_a_predictor_learns_what_can_be_learned(tmp_path, objective):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(576, 6)).astype(np.float32)
    score = np.eye(3)[np.argmax(x[:, :3], axis=1)] + 1
    part = np.arange(448), np.arange(448, 512)
    options = BlockPilotOptions(
        out=tmp_path,
        prompts=Path("none"),
        drafter="dflash",
        width=32,
        layers=2,
        batch=64,
        epochs=12,
        rate=1e-2,
        objective=objective,
    )
    layers, again = (fit_predictor(x, score, part, options) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, layers, again)
    if objective == "label":
        assert float(loss_of(layers, x[512:], targets(score, objective)[512:])) < 0.7 < np.log(3)
    assert np.mean(predicted(layers, x[512:]) == labels_of(score)[512:]) > 0.7


@pytest.fixture(scope="module")
def toy():
    return jaxspec.load(
        GOLDEN / "dflash" / "target",
        drafter={"dflash": GOLDEN / "dflash" / "drafter"},
        dtype="float32",
    )


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"builder": "chain"}, {"builder": "best_first", "budget": 6}])
def test_rounds_follow_from_the_text(tmp_path, settings):
    params = jaxspec.load("mini", drafter="dflash", dtype="float32")
    prompts = [
        LabelledPrompt("a", "It was the best of times, it was"),
        LabelledPrompt("b", "def main(argv):\n    for"),
    ]
    path, options = tmp_path / "answers.jsonl", settings | {"max_new_tokens": 30}
    found = answer(params, "dflash", prompts, (3, 6), path, batch=2, **options)
    assert found.domains.tolist() == ["a", "b"] and max(found.committed[0][1][0]) > 2, (
        "drafts are accepted"
    )
    for prompt, own in zip(prompts, found.committed, strict=True):
        for size, (rounds,) in zip((3, 6), own, strict=True):
            budget = size if settings["builder"] == "chain" else settings["budget"]
            out = jaxspec.decode(
                params,
                prompt.content,
                drafter="dflash",
                **group_options(**options | {"block_size": size, "budget": budget}),
            )
            assert out.per_round.tokens.tolist() == rounds, "as decoded by itself with this size"
            assert out.per_round.context[0] == found.context[prompts.index(prompt)]
    greedy = jaxspec.decode(params, [p.content for p in prompts], drafter="ar", max_new_tokens=1)
    assert np.argmax(found.logits, axis=1).tolist() == [out.tokens[0] for out in greedy]


@pytest.mark.thorough
def test_sampled_rounds_follow_from_the_text_of_their_seed(tmp_path):
    """Labels at temperature 1 are those of sampled decodes, each seed's rounds its own."""
    params = jaxspec.load("mini", drafter="dflash", dtype="float32")
    prompt = LabelledPrompt("a", "It was the best of times, it was")
    options = {"builder": "chain", "max_new_tokens": 24, "temperature": 1.0}
    path = tmp_path / "answers.jsonl"
    found = answer(params, "dflash", [prompt], (3, 6), path, batch=1, samples=2, **options)
    for size, by_seed in zip((3, 6), found.committed[0], strict=True):
        for seed, rounds in enumerate(by_seed):
            given = options | {"block_size": size, "budget": size, "seed": seed}
            out = jaxspec.decode(params, prompt.content, drafter="dflash", **group_options(**given))
            assert out.per_round.tokens.tolist() == rounds
    assert found.committed[0][1][0] != found.committed[0][1][1], "seeds give other texts"
    with pytest.raises(ValueError, match="'samples': 2.*give another folder"):
        answer(params, "dflash", [prompt], (3, 6), path, batch=1, samples=3, **options)


@pytest.mark.slow
def test_texts_that_fill_a_short_target_are_replayed(toy):
    """A target of 64 positions, all of which prompt and answer take."""
    target = dataclasses.replace(toy.spec.target, max_positions=64)
    short = toy.replace(spec=dataclasses.replace(toy.spec, target=target))
    prompt = [117, 142, 122, 64]
    ((rounds,),) = committed_rounds(short, "dflash", [prompt], (4,), max_new_tokens=60)
    options = {"drafter": "dflash", "builder": "chain", "block_size": 4, "budget": 4}
    out = jaxspec.decode(short, prompt, max_new_tokens=60, **group_options(**options))
    assert rounds == out.per_round.tokens.tolist()


@pytest.mark.slow
def test_answers_are_kept_and_go_on(toy, tmp_path):
    prompts = [LabelledPrompt("a", [117, 142, 122, 64]), LabelledPrompt("b", [40, 41, 42])]
    path, options = tmp_path / "answers.jsonl", {"builder": "chain", "max_new_tokens": 16}
    first = answer(toy, "dflash", prompts[:1], (3, 5), path, batch=2, **options)
    lines = path.read_text()
    both = answer(toy, "dflash", prompts, (3, 5), path, batch=2, **options)
    assert path.read_text().startswith(lines) and both.committed[0] == first.committed[0]
    # Nothing is decoded again, for fewer sizes either.
    fewer = answer(toy, "dflash", prompts, (5,), path, batch=2, **options)
    assert fewer.committed == [own[1:] for own in both.committed] and fewer.sizes.tolist() == [5]
    with pytest.raises(ValueError, match="give another folder, or delete it"):
        answer(toy, "dflash", prompts, (3, 6), path, **options)
    with pytest.raises(ValueError, match="was made with other prompts"):
        answer(toy, "dflash", prompts[::-1], (3, 5), path, **options)


@pytest.mark.slow
def test_every_size_is_timed(toy, tmp_path):
    options = BlockCostsOptions(
        tmp_path / "t", (2, 3), drafter="dflash", contexts=(16,), repeats=1, width=8, rank=4
    )
    times = measure_blocks(toy, "dflash", options)
    for costs in times[:2]:
        assert costs.verify.shape == (2, 1, 1) and costs.verify.min() > 0
    assert set(times.predict) == {"all", "top", "projection"} and min(times.predict.values()) > 0
    about = times.single.about
    assert about["drafter"] == "dflash" and about["builder"] == "chain"


@pytest.mark.slow
def test_the_commands_end_to_end(tmp_path):
    rng = np.random.default_rng(0)
    for name, count in (("train", 10), ("test", 4)):
        rows = [
            {"domain": "ab"[i % 2], "prompt": rng.integers(3, 150, 6).tolist()}
            for i in range(count)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = dict(
        target=str(GOLDEN / "dflash" / "target"),
        drafter=str(GOLDEN / "dflash" / "drafter"),
        dtype="float32",
    )
    given |= dict(
        sizes=(2, 3), width=8, rank=4, epochs=2, batch=4, max_new_tokens=12, label="speed"
    )
    files = dict(
        prompts=tmp_path / "train.jsonl",
        held_out=tmp_path / "test.jsonl",
        times=tmp_path / "times.json",
    )
    save_block_costs(TIMES, files["times"])
    policy, found = blockpilot.train_blockpilot(
        BlockPilotOptions(out=tmp_path / "out", **files, **given)
    )
    assert found["prompts"] == [8, 2, 4] and set(found["test"]) == {
        "best fixed size",
        "BlockPilot",
        "oracle",
    }
    assert load_policy(
        tmp_path / "out" / "policy"
    ).config == policy.config and policy.config.widths == (2, 3)
    params = jaxspec.load(given["target"], drafter=given["drafter"], dtype="float32")
    prompt = rng.integers(3, 150, 6).tolist()
    out = jaxspec.decode(
        params,
        prompt,
        speculation=jaxspec.Speculation(policy=policy, builder="chain", block_size=3),
        budget=3,
        max_new_tokens=12,
    )
    assert out.tokens == jaxspec.decode(params, prompt, drafter="ar", max_new_tokens=12).tokens
    assert out.per_round.block in (2, 3) and out.per_round.rows.max() <= out.per_round.block
    options = blockpilot_study.StudyOptions(
        out=tmp_path / "out", json=tmp_path / "all.json", seeds=2, shuffles=2, **files, **given
    )
    blockpilot_study.main(options)
    ((name, kept),) = json.loads((tmp_path / "all.json").read_text()).items()
    assert (
        name.endswith("2 3, speed, 2 layers of 8")
        and len(kept["test"]["shuffled features"]["choice"]["seeds"]) == 2
    )
    assert set(kept["over_shuffled"]) == set(blockpilot_study.VARIANTS)
