"""`inspect`, `convert` and `doctor` on the golden tiny models, and on a checkpoint of every family
that can be named.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from golden_data import SHIPPED
from safetensors.numpy import load_file, save_file

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.cli import main as cli
from jaxspec.cli.shared.errors import USER_ERROR
from jaxspec.io.files.json_files import read_json
from jaxspec.io.files.safetensors_files import WEIGHTS
from jaxspec.io.hub import shipped
from jaxspec.zoo import families
from jaxspec.zoo.convert import convert
from jaxspec.zoo.doctor import diagnose, render_diagnosis
from jaxspec.zoo.inspect import describe_checkpoint, render_description
from jaxspec.zoo.probe import measure_fit

GOLDEN = SHIPPED
TARGET, DFLASH, JETSPEC = (
    GOLDEN / "dflash/target",
    GOLDEN / "dflash/drafter",
    GOLDEN / "jetspec/drafter",
)
MINI = Path(jaxspec.__file__).parent / "zoo/mini"


def edited(source: Path, destination: Path, **changes) -> Path:
    """Copy a drafter and change fields of `dflash_config`."""
    shutil.copytree(source, destination)
    hf = read_json(destination / "config.json")
    hf["dflash_config"] |= changes
    (destination / "config.json").write_text(json.dumps(hf))
    return destination


def made(directory: Path, hf: dict, tensors: dict, file: str = WEIGHTS) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(hf))
    save_file(tensors, directory / file)
    return directory


def run(capsys, *arguments):
    status = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_describe_a_drafter():
    about = describe_checkpoint(JETSPEC)
    assert (about["family"], about["readable"], about["problem"]) == ("jetspec", True, None)
    assert about["feature_layers"]["output_of_layer"] == [0, 2, 4] and about["feature_layers"][
        "input_of_layer"
    ] == [1, 3, 5]
    assert about["weights"]["parameters"] == sum(
        tensor.size for tensor in load_file(JETSPEC / WEIGHTS).values()
    )
    assert (
        about["weights"]["bytes"] == 4 * about["weights"]["parameters"]
        and about["weights"]["tensors"] == 3 + 11 * 2
    )
    assert (
        about["target"]["layers"] == 6
        and about["block_size"] == 8
        and about["mask_token_id"] == 256
    )
    assert about["flags"]["dflash_config.causal_head"] is True


@pytest.mark.parametrize("name", ["eagle3", "falcon", "medusa", "parallelspec", "specblock"])
def test_describe_what_ships(name):
    about = describe_checkpoint(MINI / "drafters" / name)
    layers = about["feature_layers"]
    assert (about["family"], about["readable"], layers["contradicted"]) == (name, True, False)
    assert layers["output_of_layer"] == (None if name == "medusa" else [1, 3, 4])


def test_describe_a_target():
    about = describe_checkpoint("mini")
    assert (about["family"], about["readable"], about["drafters"]) == (
        "target",
        True,
        list(shipped(MINI / "drafters")),
    )
    assert about["weights"]["dtypes"] == {"BF16": about["weights"]["parameters"]}
    assert "feature layers" not in render_description(about)


def test_both_conventions_agree_between_formats(tmp_path, capsys):
    written = convert(DFLASH, tmp_path / "out", "speculators", TARGET)
    native, speculators = (
        describe_checkpoint(DFLASH)["feature_layers"],
        describe_checkpoint(written)["feature_layers"],
    )
    for key in ("output_of_layer", "input_of_layer"):
        assert native[key] == speculators[key]
    assert (native["counts"], speculators["counts"]) == ("output", "input")
    status, printed, _ = run(capsys, "inspect", written)
    assert status == 0 and "dflash, layout speculators" in printed and "target" in printed
    assert "output of layer  [1, 2, 3]" in printed and "input of layer   [2, 3, 4]" in printed
    status, printed, _ = run(capsys, "inspect", written, "--json")
    assert json.loads(printed) == json.loads(json.dumps(describe_checkpoint(written)))


def test_the_last_layer_and_contradictions_are_pointed_out(tmp_path):
    last = edited(DFLASH, tmp_path / "last", target_layer_ids=[1, 3, 5])
    assert "before the final norm" in describe_checkpoint(last)["feature_layers"]["note"]
    own = convert(DFLASH, tmp_path / "own", "dflash", TARGET)
    assert describe_checkpoint(own)["feature_layers"]["note"] == ""
    moved = edited(own, tmp_path / "moved", target_layer_ids=[2, 3, 4])
    about = describe_checkpoint(moved)["feature_layers"]
    assert about["contradicted"] and "jaxspec object says [1, 2, 3]" in about["note"]


ONE = {
    "fc.weight": np.ones((2, 6), np.float16),
    "midlayer.hidden_norm.weight": np.ones(2, np.float16),
}
EAGLE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2,
    "draft_vocab_size": 3,
    "vocab_size": 5,
}
NVIDIA = {
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 32], "use_aux_hidden_state": True}
}
SPECULATORS = {
    "speculators_model_type": "eagle3",
    "eagle_aux_hidden_state_layer_ids": [2, 18, 33],
    "transformer_layer_config": {"model_type": "llama", "hidden_size": 2, "vocab_size": 5},
    "speculators_config": {"verifier": {"name_or_path": "Qwen/Qwen3-8B"}},
}


@pytest.mark.parametrize(
    ("hf", "family", "outputs", "target"),
    [
        (EAGLE, "eagle3", None, None),
        (EAGLE | {"num_target_layers": 36}, "eagle3", [1, 17, 32], None),
        (EAGLE | NVIDIA, "eagle3", [1, 17, 32], None),
        (EAGLE | {"eagle_aux_hidden_state_layer_ids": [2, 18, 33]}, "eagle3", [1, 17, 32], None),
        (EAGLE | {"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3", None, None),
        (SPECULATORS, "eagle3", [1, 17, 32], "Qwen/Qwen3-8B"),
        (SPECULATORS | {"speculators_model_type": "dspark"}, "dspark", [1, 17, 32], "Qwen/Qwen3-8B"),
        (EAGLE | {"architectures": ["LlamaForCausalLMSpecBlock"], "rank_classes": 4}, "specblock", None, None),
        ({"medusa_num_heads": 4, "base_model_name_or_path": "lmsys/vicuna"}, "medusa", None, "lmsys/vicuna"),
        ({"architectures": ["MedusaModel"], "num_heads": 4}, "medusa", None, None),
        ({"architectures": ["Qwen3DSparkModel"], "target_layer_ids": [1, 9, 17]}, "dspark", [1, 9, 17], None),
        ({"architectures": ["DFlash2DraftModel"], "dflash_config": {"target_layer_ids": [1, 9]}}, "dflash2", [1, 9], None),
        ({"speculation_type": "dflash", "target_layer_ids": [1, 9]}, "dflash", [1, 9], None),
        ({"model_type": "bert"}, "unknown", None, None),
    ],
)  # fmt: skip
def test_families_that_cannot_be_loaded_are_named(tmp_path, hf, family, outputs, target):
    about = describe_checkpoint(made(tmp_path / "x", hf, ONE))
    assert about["family"] == family and not about["readable"] and about["problem"]
    assert about["feature_layers"]["output_of_layer"] == outputs
    assert about["target"]["name"] == (target or "not recorded")
    assert about["weights"]["parameters"] == 14 and family in render_description(about)


def test_medusas_own_file_and_pickles(tmp_path):
    heads = {
        "0.0.linear.weight": np.ones((4, 4), np.float32),
        "0.1.weight": np.ones((9, 4), np.float32),
    }
    directory = made(
        tmp_path / "medusa",
        {"medusa_num_heads": 1, "medusa_num_layers": 1},
        heads,
        "medusa_lm_head.safetensors",
    )
    assert describe_checkpoint(directory)["weights"]["files"] == ["medusa_lm_head.safetensors"]
    (directory / "medusa_lm_head.safetensors").unlink()
    shutil.copyfile(GOLDEN / "torch/dtypes.pt", directory / "medusa_lm_head.pt")
    weights = describe_checkpoint(directory)["weights"]
    assert (
        weights["files"] == ["medusa_lm_head.pt"]
        and weights["dtypes"]["BOOL"] == 3
        and weights["dtypes"]["I64"] == 2
    )


def test_layout_names():
    assert (
        families.layout(EAGLE | NVIDIA, {"midlayer.hidden_norm.weight"})
        == "native (midlayer, NVIDIA eagle_config)"
    )
    assert (
        families.layout(EAGLE, {"fc.weight", "layers.0.hidden_norm.weight"}) == "native (layers.0)"
    )
    assert families.layout({"architectures": ["MedusaModel"]}, ()) == "vLLM"
    assert families.layout({"dflash_config": {"mask_token_id": 1}}, ()) == "native (z-lab DFlash)"


def test_inspect_and_convert_report_mistakes_in_one_line(capsys, tmp_path):
    for arguments, message in [
        (["inspect", tmp_path], "has no config.json"),
        (["inspect", "/no/such/place"], "/no/such/place"),
        (
            ["convert", JETSPEC, tmp_path / "x", "--to", "speculators", "--target", TARGET],
            "--to jetspec",
        ),
    ]:
        status, out, err = run(capsys, *arguments)
        assert status == USER_ERROR and out == "" and err.count("\n") == 1 and message in err
    status, out, _ = run(
        capsys, "convert", JETSPEC, tmp_path / "x", "--to", "dflash", "--target", TARGET
    )
    assert (
        status == 0
        and out == f"wrote {tmp_path / 'x'}\n"
        and describe_checkpoint(tmp_path / "x")["family"] == "jetspec"
    )


@pytest.fixture
def prompts(tmp_path):
    """The golden decodes' prompts, and a file of them."""
    records = json.loads((GOLDEN / "dflash/decode.json").read_text())
    lines = list(dict.fromkeys(" ".join(map(str, record["prompt"])) for record in records))
    (tmp_path / "prompts.txt").write_text("\n".join(lines) + "\n")
    return [list(map(int, line.split())) for line in lines], tmp_path / "prompts.txt"


@pytest.mark.thorough
def test_doctor_alone_tells_what_runs_here(capsys):
    status, printed, _ = run(capsys, "doctor")
    assert status == 0 and "tree_attention: blocks (triton: needs an NVIDIA GPU" in printed
    assert "packed_attention: blocks" in printed and f"jax {jax.__version__}" in printed
    status, printed, _ = run(capsys, "doctor", "--json")
    assert status == 0 and set(json.loads(printed)) >= {"versions", "device", "kernels"}


@pytest.mark.thorough
def test_doctor_names_the_right_convention(tmp_path, capsys, prompts):
    """Ids that count inputs, where outputs are meant."""
    shifted = edited(DFLASH, tmp_path / "shifted", target_layer_ids=[2, 3, 4])
    status, printed, _ = run(capsys, "doctor", TARGET, shifted, "--prompts", prompts[1], "--json")
    result = json.loads(printed)
    (warning,) = result["warnings"]
    assert status == 1 and "outputs of layers [1, 2, 3] (0-based; inputs of [2, 3, 4])" in warning
    assert "set dflash_config.target_layer_ids, which counts outputs, to [1, 2, 3]" in warning
    assert (
        set(result["shifts"]) == {"0", "-1", "1"}
        and result["shifts"]["1"]["gain"] < 0 < 3 < result["shifts"]["-1"]["gain"]
    )
    printed = render_diagnosis(result)
    for word in (
        "jax ",
        "device: cpu",
        "tree_attention",
        "memory settings",
        "warning: another",
        "cannot be compared",
    ):
        assert word in printed

    # The same compiled decode, round by round: an anchor accepts what the probe says it does.
    params = jaxspec.load(TARGET, drafter={"drafter": str(shifted)})
    options = {
        "max_new_tokens": 32,
        "drafter": "drafter",
        "builder": "chain",
        "budget": 8,
        "ignore_eos": True,
        "trace": True,
    }
    outputs = jaxspec.decode(params, prompts[0], **group_options(**options))
    texts = [prompt + out.tokens for prompt, out in zip(prompts[0], outputs, strict=True)]
    (found,) = measure_fit(
        params, "drafter", texts, [len(prompt) for prompt in prompts[0]], [(2, 3, 4)]
    )
    for out, accepted in zip(outputs, np.split(found.accepted, len(outputs)), strict=True):
        anchor = 0
        for step in out.rounds[:-1]:  # the limit may cut the last one
            assert accepted[anchor] == len(step.path) - 1
            anchor += len(step.path)
        assert anchor > 10

    prompts[1].write_text("once upon a time\n")
    status, _, err = run(capsys, "doctor", TARGET, DFLASH, "--prompts", prompts[1])
    assert status == USER_ERROR and "has no tokenizer, so its prompts are token ids" in err


@pytest.mark.slow
def test_doctor_finds_nothing_wrong_with_good_pairings(capsys, prompts):
    for arguments in (
        ["mini", "dflash"],
        ["mini", "jetspec"],
        [TARGET, DFLASH, "--prompts", prompts[1]],
    ):
        status, printed, _ = run(capsys, "doctor", *arguments)
        assert status == 0 and printed.endswith("no warnings\n")


@pytest.mark.slow
def test_doctor_names_the_right_convention_for_mini(tmp_path):
    """Ids of inputs, where outputs are meant: its own record contradicts them, and so do texts."""
    shifted = edited(MINI / "drafters/jetspec", tmp_path / "shifted", target_layer_ids=[2, 4, 5])
    contradicted, better = diagnose("mini", shifted)["warnings"]
    assert "its jaxspec object says [1, 3, 4]" in contradicted
    assert "outputs of layers [1, 3, 4] (0-based; inputs of [2, 4, 5])" in better


def test_doctor_on_records_and_misfits(tmp_path, monkeypatch):
    """What is compared before anything is decoded; the decode itself is replaced."""
    import jaxspec.zoo.doctor as doctor

    given, better = {"accepted": 1.8, "gain": 0.0}, {"accepted": 2.0, "gain": 2.5}
    monkeypatch.setattr(
        doctor, "_probe", lambda params, prompts, tokens: (1.0, {"0": given, "1": better})
    )
    good = convert("dflash", tmp_path / "good", "speculators", "mini")
    (warning,) = diagnose("mini", good)["warnings"]
    assert warning.startswith("acceptance is exactly 1")

    worse = {"accepted": 1.7, "gain": 9.0}
    monkeypatch.setattr(
        doctor, "_probe", lambda params, prompts, tokens: (2.0, {"0": given, "-1": worse})
    )
    assert diagnose("mini", good)["warnings"] == []
    hf = read_json(good / "config.json")
    hf["jaxspec"] |= {"tokenizer_sha256": "0" * 64, "chat_template_sha256": "1" * 64}
    (good / "config.json").write_text(json.dumps(hf))
    tensors = load_file(good / WEIGHTS)
    tensors["embed_tokens.weight"][3] += 1
    save_file(tensors, good / WEIGHTS)
    tokenizer, template, embedding = diagnose("mini", good)["warnings"]
    assert "another tokenizer.json" in tokenizer and "another chat template" in template
    assert "embed_tokens.weight differs from the target's in 1 rows, first 3" in embedding

    (misfit,) = diagnose("mini", DFLASH)["warnings"]
    assert "its vocabulary has 257 tokens, the target's 4096" in misfit
    with pytest.raises(ValueError, match="max_new_tokens is 1"):
        diagnose("mini", "jetspec", max_new_tokens=1)
    with pytest.raises(ValueError, match="no prompts"):
        diagnose("mini", "jetspec", prompts=[])
