"""Files of drafters with a reduced draft vocabulary: `lm_head`, `d2t` and `t2d`, in the speculators
schema and in ours.
"""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from golden_data import SHIPPED
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from slow_cases import slow_except

import jaxspec
from jaxspec.drafters.dflash.files import block_format, read_config
from jaxspec.drafters.dflash.hf_config import drafter_config_to_hf
from jaxspec.drafters.dflash.weights import drafter_leaves, to_hf
from jaxspec.drafters.format import About
from jaxspec.io.files.json_files import read_json
from jaxspec.io.files.safetensors_files import WEIGHTS, WeightFiles
from jaxspec.io.weights.draft_vocab import mapping_tensors, read_ids
from jaxspec.io.weights.weight_map import WeightMismatch
from jaxspec.zoo.convert import convert
from jaxspec.zoo.doctor import diagnose
from jaxspec.zoo.inspect import describe_checkpoint, render_description
from jaxspec.zoo.pack import pack_checkpoint

GOLDEN = SHIPPED
TARGET = GOLDEN / "dflash" / "target"
FORMAT = block_format(causal=False)
IDS = np.r_[0:20, 30:250:2, 256]
# What each golden drafter is written as: in the speculators schema, or where that has no word for
# it, natively.
FORMS = {"dflash": "speculators", "jetspec": "jetspec"}


def write(kind: str, directory: Path) -> Path:
    """A golden drafter restricted to `IDS`, as an engine's trainer writes it: our own code, for
    config.json alone.
    """
    source = GOLDEN / kind / "drafter"
    directory = convert(source, directory, FORMS[kind], TARGET)
    hf = read_json(directory / "config.json") | {"draft_vocab_size": len(IDS)}
    (directory / "config.json").write_text(json.dumps(hf))
    head = WeightFiles(TARGET)["lm_head.weight"][IDS].astype(ml_dtypes.bfloat16)
    offsets, marks = IDS - np.arange(len(IDS)), np.isin(np.arange(257), IDS)
    tensors = load_file(directory / WEIGHTS) | {
        "lm_head.weight": head,
        "d2t": offsets.astype(np.int64),
        "t2d": marks,
    }
    save_file(tensors, directory / WEIGHTS)
    return directory


def change(directory: Path, **tensors) -> None:
    """Replace tensors of a file; None removes."""
    found = load_file(directory / WEIGHTS) | {
        name.replace("__", "."): tensor for name, tensor in tensors.items()
    }
    save_file(
        {name: tensor for name, tensor in found.items() if tensor is not None}, directory / WEIGHTS
    )


def drafter(directory: Path):
    config = read_config(read_json(directory / "config.json"))
    return config, FORMAT.stored(directory, config)


@pytest.mark.parametrize("kind", FORMS)
def test_read_write_read_is_tensor_equal(tmp_path, kind):
    first = write(kind, tmp_path / "first")
    config, tensors = drafter(first)
    assert (
        config.draft_vocab_size == len(IDS)
        and tensors["lm_head.weight"].dtype == ml_dtypes.bfloat16
    )
    FORMAT.check(first, config)
    variables = FORMAT.read(first, config, "float32")
    np.testing.assert_array_equal(variables["draft"]["ids"], IDS)
    written = to_hf(variables, config, drafter_leaves(config))
    assert set(written) == set(tensors)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(written[name], tensor.astype(written[name].dtype))
    again = convert(first, tmp_path / "again", FORMS[kind])  # the file itself says enough
    assert load_file(again / WEIGHTS).keys() == load_file(first / WEIGHTS).keys()
    found, stored = drafter(again)
    assert found == config
    for name, tensor in tensors.items():
        assert stored[name].dtype == tensor.dtype
        np.testing.assert_array_equal(stored[name], tensor)


def test_the_native_layout_is_for_causal_heads_alone(tmp_path):
    first = write("dflash", tmp_path / "first")
    with pytest.raises(
        ValueError,
        match=r"no place for a reduced draft vocabulary \(131 of 257 tokens\).*--to speculators",
    ):
        convert(first, tmp_path / "x", "dflash", TARGET)
    assert not (tmp_path / "x").exists()
    hf = read_json(write("jetspec", tmp_path / "head") / "config.json")
    written = drafter_config_to_hf(read_config(hf), About(6, 512))
    assert (
        written["draft_vocab_size"] == len(IDS)
        and "jaxspec alone" in written["jaxspec"]["draft_vocabulary"]
    )
    assert read_config(written) == read_config(hf)
    with pytest.raises(
        ValueError, match=r"which with a draft vocabulary jaxspec alone reads \(--to jetspec\)"
    ):
        convert(tmp_path / "head", tmp_path / "x", "speculators", TARGET)


def test_a_target_without_a_name_can_be_written(tmp_path):
    config, _ = drafter(write("dflash", tmp_path / "first"))
    variables = FORMAT.read(tmp_path / "first", config, "float32")
    borrowed = {"model.embed_tokens.weight": WeightFiles(TARGET)["model.embed_tokens.weight"]}
    FORMAT.write(tmp_path / "out", config, variables, About(6, 512, borrowed=borrowed))
    hf = read_json(tmp_path / "out" / "config.json")
    assert (
        hf["speculators_config"]["verifier"]["name_or_path"] == "unknown"
        and hf["dtype"] == "float32"
    )
    assert drafter(tmp_path / "out")[0] == config


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("names", [["d2t", "t2d"], ["lm_head.weight"]])
def test_missing_tensors_are_named(tmp_path, kind, names):
    directory = write(kind, tmp_path / "out")
    change(directory, **dict.fromkeys(names))
    with pytest.raises(WeightMismatch, match=f"{len(names)} missing: {', '.join(names)};"):
        drafter(directory)


FREQUENT = np.random.default_rng(0).permutation(len(IDS))


@pytest.mark.parametrize(
    "tensors",
    [
        {"t2d": None},
        {"d2t": None},
        {"d2t": (IDS - np.arange(len(IDS))).astype(np.int32)},
        {"t2d": np.isin(np.arange(257), IDS).astype(np.uint8)},
        {"d2t": IDS[FREQUENT] - np.arange(len(IDS))},
    ],
)
def test_one_half_of_the_map_is_enough_in_any_order_and_type(tmp_path, tensors):
    first, second = (write("dflash", tmp_path / name) for name in ("first", "second"))
    if "d2t" in tensors and tensors["d2t"] is not None and tensors["d2t"].dtype == np.int64:
        tensors["lm_head__weight"] = load_file(first / WEIGHTS)["lm_head.weight"][FREQUENT]
    change(second, **tensors)
    (config, wanted), (_, found) = drafter(first), drafter(second)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        np.testing.assert_array_equal(found[name], tensor)
    read = [FORMAT.read(one, config, "float32")["draft"] for one in (first, second)]
    for name in ("ids", "lm_head"):
        np.testing.assert_array_equal(read[1][name], read[0][name])


OFFSETS = IDS - np.arange(len(IDS))
WHOLE = "config.json says nothing: its draft_vocab_size must be below 257"


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"d2t": IDS},
            "d2t maps draft tokens? .*(outside|ascend).* target id = i",
        ),  # ids in place of offsets
        (
            {"d2t": np.r_[OFFSETS[:-1], 127]},
            "d2t maps draft token 130 to 257, outside the target's 257 tokens",
        ),
        ({"d2t": np.r_[-1, OFFSETS[1:]]}, "d2t maps draft token 0 to -1, outside"),
        (
            {"d2t": np.r_[OFFSETS[:1], 2, OFFSETS[2:]]},
            "draft tokens 1 and 3 both to 3: it must hold offsets",
        ),
        (
            {"d2t": np.r_[OFFSETS[:1], -1, OFFSETS[2:]]},
            "draft tokens 0 and 1 both to 0: it must hold offsets",
        ),
        (
            {"d2t": OFFSETS.astype(np.float32)},
            r"d2t is float32 \[131\], but config.json says int64 \[131\]",
        ),
        ({"d2t": OFFSETS[:-1]}, r"d2t is int64 \[130\]"),
        ({"t2d": np.zeros(257, bool)}, "t2d and d2t disagree about 131 tokens, first 0"),
        (
            {"t2d": np.isin(np.arange(257), IDS - (IDS == 256))},
            "disagree about 2 tokens, first 255",
        ),
        (
            {"t2d": np.isin(np.arange(257), IDS).astype(np.float32)},
            r"t2d is float32 \[257\], but .* bool \[257\]",
        ),
        ({"t2d": np.isin(np.arange(256), IDS)}, r"t2d is bool \[256\]"),
        (
            {"lm_head__weight": np.zeros((257, 64), np.float32)},
            r"lm_head.weight \[257, 64\] \(expected \[131, 64\]\)",
        ),
        ({"lm_head__weight": np.full((131, 64), np.nan, np.float32)}, "lm_head.weight holds NaN"),
    ],
)
def test_a_wrong_map_is_refused(tmp_path, tensors, message):
    directory = write("dflash", tmp_path / "out")
    change(directory, **tensors)
    config = read_config(read_json(directory / "config.json"))
    for read in (
        lambda: FORMAT.read(directory, config, "float32"),
        lambda: FORMAT.stored(directory, config),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            read()
        assert "\n" not in str(caught.value)


def test_config_and_map_must_agree(tmp_path):
    directory = write("dflash", tmp_path / "out")
    hf = read_json(directory / "config.json")
    (directory / "config.json").write_text(json.dumps(hf | {"draft_vocab_size": 257}))
    with pytest.raises(ValueError, match=f"d2t maps a reduced draft vocabulary, of which {WHOLE}"):
        drafter(directory)


def test_offsets_and_marks_of_the_schema():
    tensors = mapping_tensors(np.array([1, 4, 5], np.int32), 7)
    assert tensors["d2t"].tolist() == [1, 3, 3] and tensors["d2t"].dtype == np.int64
    assert tensors["t2d"].tolist() == [False, True, False, False, True, True, False]
    assert read_ids(tensors, 3, 7).tolist() == [1, 4, 5]


def test_inspect_shows_the_draft_vocabulary(tmp_path):
    for kind in FORMS:
        about = describe_checkpoint(write(kind, tmp_path / kind))
        assert about["readable"] and about["draft_vocabulary"] == 131 and about["family"] == kind
        assert "draft vocabulary   131 of 257 tokens" in render_description(about)
    change(tmp_path / "dflash", d2t=IDS)
    assert "d2t maps draft token" in describe_checkpoint(tmp_path / "dflash")["problem"]


@pytest.mark.slow
def test_doctor_measures_what_can_be_drafted(tmp_path):
    found = diagnose(
        TARGET,
        str(write("dflash", tmp_path / "out")),
        prompts=[[117, 142, 122, 64, 240, 19]],
        max_new_tokens=12,
    )
    assert found["acceptance"] >= 1 and not any(
        "differs from the target's" in warning for warning in found["warnings"]
    )
    assert all(np.isfinite(list(values.values())).all() for values in found["shifts"].values())


@pytest.fixture
def borrowing(tmp_path):
    """A drafter that is packed without the target's rows, and the same one with them."""
    whole = write("jetspec", tmp_path / "whole")
    return whole, pack_checkpoint(whole, tmp_path / "packed", TARGET)


@pytest.mark.parametrize("kind", slow_except(["dflash"], FORMS))
@pytest.mark.thorough
def test_the_targets_rows_need_not_be_stored(kind, tmp_path):
    whole = write(kind, tmp_path / "whole")
    packed = pack_checkpoint(whole, tmp_path / "packed", TARGET)
    with safe_open(packed / WEIGHTS, "np") as file:
        assert not {"lm_head.weight", "embed_tokens.weight"} & set(file.keys())
    params, full = (jaxspec.load(TARGET, drafter={kind: x}) for x in (packed, whole))
    rows = params.target["params"]["lm_head"][:, IDS]
    np.testing.assert_array_equal(params.drafters[kind]["draft"]["lm_head"], rows)
    options = dict(max_new_tokens=16, drafter=kind, budget=6)
    found, expected = (jaxspec.decode(p, [9, 8, 7], **options) for p in (params, full))
    assert list(found.tokens) == list(expected.tokens)
    described = describe_checkpoint(packed)
    assert described["readable"] is True
    assert "jaxspec.output_projection=target" in render_description(described)
    FORMAT.check(packed, read_config(read_json(packed / "config.json")))


def test_rows_come_from_quantised_targets_too(borrowing):
    params = jaxspec.load(TARGET, drafter={"jetspec": borrowing[1]}, quantize="int8")
    rows = jaxspec.load(TARGET, drafter={}).target["params"]["lm_head"][:, IDS]
    found = params.drafters["jetspec"]["draft"]["lm_head"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, rows, atol=float(np.abs(rows).max()) / 100)


def test_a_projection_that_is_not_the_targets_is_kept(tmp_path):
    own = write("jetspec", tmp_path / "own")
    change(own, lm_head__weight=1.5 * WeightFiles(TARGET)["lm_head.weight"][IDS])
    for target, name in ((TARGET, "other"), (None, "unknown")):
        packed = pack_checkpoint(own, tmp_path / name, target)
        assert "lm_head.weight" in load_file(packed / WEIGHTS)
        jaxspec.load(TARGET, drafter={"jetspec": packed})


def test_a_drafter_without_its_projection_is_written_whole(borrowing, tmp_path):
    whole, packed = borrowing
    written = load_file(convert(packed, tmp_path / "converted", "jetspec", TARGET) / WEIGHTS)
    head = load_file(whole / WEIGHTS)["lm_head.weight"]
    np.testing.assert_array_equal(written["lm_head.weight"].astype(head.dtype), head)
    with pytest.raises(ValueError, match="leaves its output projection to the target: give --t"):
        convert(packed, tmp_path / "x", "jetspec")
    jaxspec.save(jaxspec.load(TARGET, drafter={"jetspec": packed}), tmp_path / "saved")
    again = jaxspec.load(tmp_path / "saved")
    assert again.drafters["jetspec"]["draft"]["lm_head"].shape[1] == len(IDS)
    assert "lm_head.weight" in load_file(tmp_path / "saved/drafters/jetspec" / WEIGHTS)


def test_a_missing_projection_is_named_where_the_file_does_not_say_so(tmp_path):
    drafter = write("jetspec", tmp_path / "drafter")
    change(drafter, lm_head__weight=None)
    with pytest.raises(WeightMismatch, match=r"lm_head\.weight"):
        jaxspec.load(TARGET, drafter={"jetspec": drafter})
