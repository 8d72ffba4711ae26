"""Published repositories, recorded in tests/golden/repositories: names, shapes and stored dtypes
that readers expect, and small copies in the same formats that load and decode.
"""

from __future__ import annotations

import logging
import re

import pytest
from repositories import (
    Repository,
    count_bytes,
    list_recorded,
    read_repository,
    shrink,
    write_headers,
    write_small,
)

import jaxspec
from jaxspec.drafters.draft_model.drafter import DraftModelConfig
from jaxspec.drafters.files import check_files, find_config, for_target
from jaxspec.drafters.registry import record_of
from jaxspec.io.weights.config_entries import read_entries
from jaxspec.targets.families.hf_config import target_config
from jaxspec.targets.weights import target_leaves
from jaxspec.zoo.inspect import describe_checkpoint
from jaxspec.zoo.places import open_target

RECORDED = {name: read_repository(name) for name in list_recorded()}
TARGETS = [name for name, one in RECORDED.items() if one.target is None]
# Kind of each drafter, and the target layers whose outputs it reads.
DFLASH = (1, 9, 17, 25, 33)
DRAFTERS = {
    "eagle3-llama3.1-instruct-8b": ("eagle3", (1, 15, 28)),
    "qwen3-8b-speculator.eagle3": ("eagle3", (1, 17, 32)),
    "gpt-oss-20b-speculator.eagle3": ("eagle3", (1, 11, 20)),
    "eagle3-gpt-oss-20b": ("eagle3", (1, 11, 20)),
    "qwen3-8b-dflash-b16": ("dflash", DFLASH),
    "jetspec-qwen3-8b": ("jetspec", DFLASH),
    "dspark-qwen3-8b-block7": ("dspark", DFLASH),
    "treeflash-qwen3-8b": ("treeflash", DFLASH),
    "pard-qwen3-0.6b": ("draft_model", ()),
}
# What nothing reads: other models beside the text model, a table that is the embeddings again,
# biases of zeros, and the layer that predicts further tokens.
UNREAD = {
    "gemma-3-12b-it": r"vision_tower\.|multi_modal_projector\.",
    "gemma-3-4b-it": r"vision_tower\.|multi_modal_projector\.",
    "ministral-3-8b-instruct-2512": r"vision_tower\.|multi_modal_projector\.|.*activation_scale$",
    "qwen3-0.6b": r"lm_head\.weight$",
    "qwen2.5-7b-instruct-gptq-int4": r".*(o|gate|up|down)_proj\.bias$",
    "glm-4.5-air": r"model\.layers\.46\.",
}


@pytest.mark.parametrize("name", TARGETS)
def test_readers_expect_what_a_target_holds(name, tmp_path, caplog):
    caplog.set_level(logging.ERROR)
    repository = RECORDED[name]
    write_headers(repository, tmp_path)
    about = describe_checkpoint(tmp_path)
    assert about["family"] == "target" and about["readable"], about["problem"]
    assert about["weights"]["bytes"] == sum(map(count_bytes, repository.tensors.values()))
    assert repository.size in (None, about["weights"]["bytes"])
    config = target_config(read_entries(tmp_path / "config.json"))
    wanted = {each for leaf in target_leaves(config) for each, *_ in leaf.parts()}
    read = open_target(tmp_path)
    assert wanted <= set(read)
    stems = {each.rpartition(".")[0] or each for each in wanted} | wanted
    unread = [each for each in repository.tensors if not _is_read(each, stems, wanted, name)]
    assert all(re.match(UNREAD.get(name, "$"), each) for each in unread), unread[:5]
    assert bool(unread) == (name in UNREAD)


def _is_read(stored: str, stems: set[str], wanted: set[str], name: str) -> bool:
    """Whether a stored tensor is read under its own name, or as a part of a quantised weight."""
    plain = re.sub(r"^language_model\.(model\.|(?=lm_head))", lambda m: m[1] or "", stored)
    plain = plain if plain == stored or plain.startswith("lm_head") else f"model.{plain[6:]}"
    stem, _, part = plain.rpartition(".")
    if part == "activation_scale":
        return False
    packed = part not in ("weight", "bias") and stem in stems
    return plain in wanted or packed or re.sub("_(blocks|scales)$", "", plain) in wanted


@pytest.mark.parametrize("name", DRAFTERS)
def test_readers_expect_what_a_drafter_holds(name, tmp_path):
    repository = RECORDED[name]
    write_headers(repository, tmp_path)
    target = {k: v for k, v in RECORDED[repository.target].config.items() if v is not None}
    config = for_target(find_config(tmp_path), target_config(target))
    assert (record_of(config).name, config.feature_layers) == DRAFTERS[name]
    check_files(tmp_path, config)
    if name.startswith("pard"):
        return  # `inspect` calls it the model that it is
    about = describe_checkpoint(tmp_path)
    assert about["readable"] and about["family"] == DRAFTERS[name][0]


def test_every_record_is_checked():
    assert {*TARGETS, *DRAFTERS} == set(RECORDED)


# Widths of gpt-oss, whose blocks of 32 stay, and layers that are kept, if not two.
GPT_OSS = {2880: 64, 5760: 128, 8640: 192, 11520: 96, 90: 2, 64: 8, 4096: 512, 512: 64}
LAYERS = {"gemma-3-12b-it": 6, "gemma-3-4b-it": 6, "smollm3-3b": 4, "olmo-3-7b-instruct": 4}
# The cheapest, and those of most kinds of layers and formats.
CHEAP = ("qwen2.5-coder-1.5b",)
THOROUGH = (
    "qwen3-8b-dflash-b16",
    "gemma-3-4b-it",
    "gpt-oss-20b",
    "glm-4.5-air",
    "ministral-3-8b-instruct-2512",
)
THOROUGH += ("gpt-oss-20b-speculator.eagle3", "dspark-qwen3-8b-block7")


def by_cost(names):
    """Mark all but the cheapest."""
    marks = {name: pytest.mark.thorough if name in THOROUGH else pytest.mark.slow for name in names}
    return [name if name in CHEAP else pytest.param(name, marks=marks[name]) for name in names]


def make_small(name: str, layers: int | None = None) -> Repository:
    repository = RECORDED[name]
    layers = layers or LAYERS.get(name, 2)
    if repository.target is not None:
        text = repository.config.get("transformer_layer_config") or repository.config
        layers = min(text["num_hidden_layers"], 2)
    widths = GPT_OSS if "gpt-oss" in name else None
    return shrink(repository, layers, widths=widths)


def compare_with_plain(params, drafter: str) -> None:
    """Compare texts drafted in trees with autoregressive ones, greedy and with a seed."""
    prompts = [[5, 6, 7, 5, 6, 7, 5, 6], list(range(20, 45))]
    options = {"max_new_tokens": 20, "sampling": jaxspec.Sampling(ignore_eos=True)}
    for how in ({}, {"temperature": 1.0, "seed": 3}):
        plain, drafted = (
            jaxspec.decode(params, prompts, **how, **options, drafter=name, **size)
            for name, size in (("ar", {}), (drafter, {"budget": 12}))
        )
        assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert len({token for one in plain for token in one.tokens}) > 9


@pytest.mark.parametrize("name", by_cost(TARGETS))
def test_a_small_target_decodes(name, tmp_path, caplog):
    caplog.set_level(logging.ERROR)
    write_small(make_small(name), tmp_path)
    params = jaxspec.load(tmp_path, dtype="float32", drafter={})
    # Drafted by itself, so that long paths of the trees are accepted.
    params = params.with_drafter("self", DraftModelConfig(params.spec.target), params.target)
    compare_with_plain(params, "self")


@pytest.mark.parametrize("name", by_cost(DRAFTERS))
def test_a_small_drafter_drafts(name, tmp_path, caplog):
    caplog.set_level(logging.ERROR)
    target = RECORDED[name].target
    write_small(make_small(target, layers=8), tmp_path / "target")
    write_small(make_small(name), tmp_path / "drafter", seed=1)
    params = jaxspec.load(tmp_path / "target", dtype="float32", drafter=tmp_path / "drafter")
    compare_with_plain(params, DRAFTERS[name][0])
