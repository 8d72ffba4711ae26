"""BlockPilot's labels against recorded ones; a predictor that learns what can be learned, and what is printed beside it."""

from pathlib import Path

import numpy as np
import pytest

import jaxspec
from jaxspec.bench.prompts import Prompt
from training.policies.blockpilot import BlockPilotOptions, fit_predictor, loss_of, report
from training.policies.blockpilot_data import Answers, answer, labels_of, last_logits, neighbourhood, split

GOLDEN = Path(__file__).parents[2] / "golden"
RECORDED = np.load(GOLDEN / "blockpilot" / "blockpilot.npz")


def test_labels_are_those_of_the_paper():
    cycles, count = RECORDED["lab_cycles"].astype(np.int64), RECORDED["lab_ncycles"]
    inside = np.arange(cycles.shape[-1]) < count[..., None]
    answers = Answers(None, count, (cycles * inside).sum(-1), None, RECORDED["lab_candidates"], None)
    np.testing.assert_allclose(answers.length, RECORDED["lab_mean"])
    classes = labels_of(answers.length)
    np.testing.assert_array_equal(classes, RECORDED["lab_class"])
    np.testing.assert_array_equal(answers.sizes[classes], RECORDED["lab_block"])
    tied = (answers.length == answers.length.max(1, keepdims=True)).sum(1)
    np.testing.assert_array_equal(tied, RECORDED["lab_ntied"])
    assert tied.max() > 1, "ties go to the smallest block"


def test_sizes_around_the_trained_one():
    assert neighbourhood(16) == (14, 15, 16, 17, 18) and neighbourhood(3, 2) == (2, 3, 4, 5)


def test_every_domain_is_split_alike():
    parts = split(np.array(["a", "b"] * 10))
    assert [len(part) for part in parts] == [12, 4, 4]
    assert sorted(np.concatenate(parts).tolist()) == list(range(20))
    with pytest.raises(ValueError, match="4 prompts cannot be split in three: give at least 5"):
        split(np.array(["a"] * 4))


def test_what_stands_beside_a_prediction():
    score = np.array([[1.0, 2.0], [3.0, 1.0], [1.0, 1.5], [2.0, 1.0], [1.0, 3.0]])
    found = report(score, {"mine": np.array([1, 1])}, (np.arange(3), np.array([3, 4])), trained=0)
    assert found["best fixed size"]["score"] == 1.5 and found["trained size"]["score"] == 1.5
    assert found["commonest label"]["score"] == 2.0 == found["mine"]["score"]
    assert found["oracle"] == {"score": 2.5, "against_best_fixed": 2.5 / 1.5, "accuracy": 1.0}
    assert found["mine"]["against_best_fixed"] == pytest.approx(2 / 1.5) and found["mine"]["accuracy"] == 0.5


@pytest.mark.slow
def test_a_predictor_learns_what_can_be_learned_and_a_run_goes_on(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(576, 6)).astype(np.float32)
    score = np.eye(3)[np.argmax(x[:, :3], axis=1)] + 1
    part = np.arange(448), np.arange(448, 512)
    options = BlockPilotOptions(Path("none"), tmp_path, width=32, layers=2, batch=64, epochs=12, rate=1e-2)
    layers = fit_predictor(x, score, part, options, tmp_path / "run")
    again = fit_predictor(x, score, part, options, tmp_path / "run")
    for one, other in zip(layers, again, strict=True):
        np.testing.assert_array_equal(one["kernel"], other["kernel"])
    total, count = loss_of(layers, {"x": x[512:], "label": labels_of(score)[512:], "seed": np.arange(64)}, drop=False)["loss"]
    assert float(total / count) < 0.7 < np.log(3)


@pytest.mark.slow
def test_answers_are_kept_and_go_on(tmp_path):
    params = jaxspec.load(GOLDEN / "dflash" / "target", drafter={"dflash": GOLDEN / "dflash" / "drafter"}, dtype="float32")
    prompts = [Prompt("a", [117, 142, 122, 64]), Prompt("b", [40, 41, 42])]
    options = dict(builder="chain", max_new_tokens=16, ignore_eos=True)
    path = tmp_path / "answers.jsonl"
    first = answer(params, "dflash", prompts[:1], (3, 5), path, **options)
    both = answer(params, "dflash", prompts, (3, 5), path, **options)
    assert both.rounds.shape == (2, 2) and both.tokens.tolist() == [[15, 15], [15, 15]]
    np.testing.assert_array_equal(both.seconds[0], first.seconds[0])
    assert both.domains.tolist() == ["a", "b"]
    greedy = jaxspec.decode(params, [p.content for p in prompts], method="ar", max_new_tokens=1)
    assert np.argmax(both.logits, axis=1).tolist() == [out.tokens[0] for out in greedy]
    np.testing.assert_allclose(both.logits[1], last_logits(params, prompts[1].content))
    with pytest.raises(ValueError, match="give another folder, or delete it"):
        answer(params, "dflash", prompts, (3, 6), path, **options)
