"""`jaxspec plan`: which GPUs should share a model."""

import json

import pytest

from jaxspec.bench.architectures import ARCHITECTURES
from jaxspec.bench.plan_mesh import Load, choose_mesh, plan_meshes
from jaxspec.cli.main import main

QWEN3_32B = ARCHITECTURES["qwen3-32b"]


def test_meshes_that_do_not_fit_are_not_chosen():
    plans = plan_meshes(QWEN3_32B, "h100", 4, Load(batch=8, rows=64, context=32768))
    assert [(one["replicas"], one["devices"], one["batch"]) for one in plans] == [
        (4, 1, 2),
        (2, 2, 4),
        (1, 4, 8),
    ]
    assert [one["fit"] for one in plans] == [False, True, True]
    best = choose_mesh(plans)
    assert best["fit"] and best["round"] == min(one["round"] for one in plans[1:])


def test_one_sequence_is_fastest_on_all_devices():
    plans = plan_meshes(QWEN3_32B, "h100", 8, Load(batch=1, rows=64, context=4096))
    assert choose_mesh(plans)["devices"] == 8
    assert plans[-1]["sums"] < plans[-1]["plain"] < plans[-1]["round"]


def test_a_drafter_takes_memory_and_time():
    def plan(drafter):
        return plan_meshes(QWEN3_32B, "h100", 2, Load(1, 64, 4096, drafter=drafter))[1]

    without, with_one = plan(0), plan(2e9)
    assert with_one["weights"] - without["weights"] == 2e9
    assert with_one["round"] - without["round"] == pytest.approx(2e9 / 3.35e12)


def test_the_command_says_which_mesh_to_take(capsys, tmp_path):
    report = tmp_path / "plan.json"
    options = ["--gpus", "4xH100", "--context", "32k", "--batch", "8", "--json", str(report)]
    assert main(["plan", "Qwen3-32B", *options]) == 0
    assert "--tp 2" in capsys.readouterr().out
    assert [one["devices"] for one in json.loads(report.read_text())] == [1, 2, 4]
    assert main(["plan", "qwen3-32b", "--gpus", "1xh100", "--context", "64k"]) == 0
    assert "None fits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["qwen3-32b", "--gpus", "four"], "as in 4xh100"),
        (["qwen3-32b", "--gpus", "2xl4"], "peak rates of 'l4' are not known: choose one of h100, "),
        (["qwen3-32b", "--gpus", "2xa5000"], "memory and peak rates of 'a5000'"),
        (["qwen3-32b", "--drafter-gb", "-1"], "--drafter-gb is -1.0"),
        (["qwen3-32b", "--batch", "0"], "at least 1"),
        (["nowhere"], "no directory with config.json"),
    ],
)
def test_mistakes_are_named(options, message, capsys):
    assert main(["plan", *options]) == 2
    assert message in capsys.readouterr().err


def test_the_command_says_how_to_share_experts(capsys):
    def advice(*options):
        assert main(["plan", "qwen3-30b-a3b", "--gpus", "8xh100", "--rows", "64", *options]) == 0
        return capsys.readouterr().out.splitlines()[-1]

    assert advice("--batch", "16").startswith("Take --tp 8 --experts expert.")
    assert advice("--batch", "1").startswith("Take --tp 8.")
