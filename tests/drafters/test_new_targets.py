"""Drafters of random weights in their published layouts on small targets of other families: texts
are those without a drafter.
"""

from __future__ import annotations

import logging

import pytest
from make_repositories import derive
from repositories import DRAFT, VOCABULARY, Repository, read_repository, shrink, write_small

import jaxspec
from jaxspec.drafters.registry import record_of

# gpt-oss keeps its blocks of 32: every width and what it becomes.
GPT_OSS = {2880: 64, 5760: 128, 90: 2, 64: 8, 4096: 512, 512: 64}
TARGETS = {"qwen2": "qwen2.5-7b-instruct", "gpt_oss": "gpt-oss-20b", "gemma3": "gemma-3-12b-it"}
DRAFTERS = {
    "eagle3": "gpt-oss-20b-speculator.eagle3",
    "dflash": "qwen3-8b-dflash-b16",
    "dspark": "dspark-qwen3-8b-block7",
    "treeflash": "treeflash-qwen3-8b",
    "draft_model": "pard-qwen3-0.6b",
}
SIZES = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48}
IDS = "eagle_aux_hidden_state_layer_ids"


def make_target(family: str) -> Repository:
    widths = GPT_OSS if family == "gpt_oss" else None
    return shrink(read_repository(TARGETS[family]), 6, widths=widths)


def make_drafter(kind: str, width: int) -> Repository:
    """A drafter of one or two narrow layers for targets of this width, with sizes of its own."""
    recorded = read_repository(DRAFTERS[kind])
    own = SIZES | {"vocab_size": VOCABULARY, "num_hidden_layers": 1 if kind == "eagle3" else 2}
    own |= {"layer_types": ["full_attention"] * own["num_hidden_layers"]}
    if kind == "draft_model":
        return shrink(recorded, 2)
    hf, own = recorded.config, own | {"hidden_size": width}
    if kind == "eagle3":
        layer = {"transformer_layer_config": hf["transformer_layer_config"] | own}
        return derive(
            recorded._replace(config=hf | layer | {"draft_vocab_size": DRAFT, IDS: [1, 3, 5]})
        )
    taps = {"target_layer_ids": [0, 2, 4], "mask_token_id": VOCABULARY - 1}
    own |= {"num_target_layers": 6, "block_size": 6, "max_window_layers": 2}
    own |= {"markov_rank": 8} if kind == "dspark" else {}
    nested = {"dflash_config": hf["dflash_config"] | taps} if "dflash_config" in hf else taps
    return derive(recorded._replace(config=hf | own | nested))


def by_cost(family: str, kind: str):
    thorough = ("gpt_oss", "dflash"), ("gemma3", "eagle3"), ("qwen2", "treeflash")
    thorough = (family, kind) in thorough
    return pytest.param(family, kind, marks=pytest.mark.thorough if thorough else pytest.mark.slow)


@pytest.mark.parametrize(
    ("family", "kind"), [by_cost(family, kind) for family in TARGETS for kind in DRAFTERS]
)
def test_texts_are_those_without_a_drafter(family, kind, tmp_path, caplog):
    caplog.set_level(logging.ERROR)
    target = make_target(family)
    text = target.config.get("text_config") or target.config
    write_small(target, tmp_path / "target")
    write_small(make_drafter(kind, text["hidden_size"]), tmp_path / "drafter", seed=1)
    params = jaxspec.load(tmp_path / "target", dtype="float32", drafter=tmp_path / "drafter")
    ((name, config),) = params.spec.drafters
    assert name == kind == record_of(config).name
    options = {"max_new_tokens": 20, "sampling": jaxspec.Sampling(ignore_eos=True)}
    prompts = [[5, 6, 7], list(range(20, 45))]
    for how in ({}, {"temperature": 1.0, "seed": 3}):
        plain, drafted = (
            jaxspec.decode(params, prompts, **how, **options, drafter=one) for one in ("ar", kind)
        )
        assert [one.tokens for one in drafted] == [one.tokens for one in plain]
        assert sum(one.stats.rounds for one in drafted) > 0
    assert len({token for one in plain for token in one.tokens}) > 9
