"""A small model drafts with a cache of its own; one that is the target itself is never wrong."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.core.config import TargetConfig
from jaxspec.core.params import Params, Spec
from jaxspec.drafters.draft_model.drafter import DraftModelConfig
from jaxspec.targets.transformer import Transformer

TARGET = TargetConfig(
    hidden_size=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    ffn_size=48,
    vocab_size=40,
    max_positions=2048,
)
TREE = "static/paths=[[0],[1],[0,0],[0,1],[0,0,0],[0,0,0,0]]"
PROMPTS = [[1, 2, 3], list(range(5, 25))]


def model(config: TargetConfig, seed: int):
    token = jnp.zeros((1, 2), jnp.int32)
    variables = jax.jit(Transformer(config).init)(jax.random.key(seed), token, token)
    return jax.tree.map(lambda leaf: leaf * 4 if leaf.ndim > 1 else leaf, variables)


@pytest.fixture(scope="module")
def params():
    other = dataclasses.replace(TARGET, hidden_size=16, num_layers=1, tie_embeddings=True)
    drafters = (("self", DraftModelConfig(TARGET)), ("other", DraftModelConfig(other)))
    target = model(TARGET, 0)
    return Params(target, {"self": target, "other": model(other, 1)}, Spec(TARGET, drafters))


@pytest.mark.thorough
def test_the_target_as_its_own_drafter_is_never_wrong(params):
    outs = jaxspec.decode(
        params,
        PROMPTS,
        drafter="self",
        speculation=jaxspec.Speculation(builder="chain"),
        budget=5,
        max_new_tokens=21,
    )
    assert [out.stats.accept_hist[5] for out in outs] == [4, 4]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0, "builder": "dynamic/w3", "budget": 6},
        {"temperature": 1.0, "builder": "dynamic/w3", "budget": 6},
        {"temperature": 1.0, "builder": "chain", "budget": 5, "acceptance": "rejection"},
        {"temperature": 0.0, "builder": TREE},
        {"temperature": 1.0, "builder": TREE, "depth": 4},
    ],
    ids=str,
)
def test_every_builder_of_the_target_as_its_own_drafter(params, options):
    """The best tokens are in every tree; where trees have one shape, or p = q accepts all, rounds
    commit the longest path.
    """
    (out,) = jaxspec.decode(
        params, PROMPTS[:1], drafter="self", max_new_tokens=24, **group_options(**options)
    )
    assert out.stats.accept_hist[1] + out.stats.accept_hist[2] <= 1
    if not options["builder"].startswith("dynamic"):
        assert max(out.stats.accept_hist[4:6]) >= out.stats.rounds - 1


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("builder", ["chain", "dynamic"])
def test_another_model_changes_no_text(params, builder, temperature):
    options = {"max_new_tokens": 24, "temperature": temperature}
    plain = jaxspec.decode(params, PROMPTS, drafter="ar", **group_options(**options))
    outs = jaxspec.decode(
        params, PROMPTS, drafter="other", **group_options(builder=builder, **options), budget=7
    )
    assert [out.tokens for out in outs] == [out.tokens for out in plain]


@pytest.mark.slow
def test_long_prompts_go_in_by_chunks(params):
    prompt = jax.random.randint(jax.random.key(0), (700,), 0, 40).tolist()
    (out,) = jaxspec.decode(
        params,
        [prompt],
        drafter="self",
        speculation=jaxspec.Speculation(builder="chain"),
        budget=5,
        max_new_tokens=21,
    )
    assert out.stats.accept_hist[5] == 4


def test_a_models_own_folder_is_a_drafter(params, tmp_path):
    small = dataclasses.replace(params.spec, drafters=())
    jaxspec.save(Params(params.target, {}, small), tmp_path / "target")
    one = Params(params.drafters["other"], {}, Spec(dict(params.spec.drafters)["other"].model))
    jaxspec.save(one, tmp_path / "other")
    loaded = jaxspec.load(tmp_path / "target", drafter=tmp_path / "other", dtype="float32")
    assert dict(loaded.spec.drafters)["draft_model"] == DraftModelConfig(one.spec.target)
    jax.tree.map(
        lambda a, b: (a == b).all() or pytest.fail("changed"),
        loaded.drafters["draft_model"],
        params.drafters["other"],
    )
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    config["vocab_size"] = 41
    (tmp_path / "other" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="its vocabulary has 41 tokens, the target's 40"):
        jaxspec.load(tmp_path / "target", drafter=tmp_path / "other")


def test_refusals(params):
    for options, message in (
        (
            {"drafter": "self", "builder": "best_first"},
            "does not suit .self.: choose one of chain, dynamic, static",
        ),
        ({"drafter": "self", "block_size": 4}, "block_size is for block drafters"),
        ({"drafter": "self", "depth": 0}, "depth is 0"),
        (
            {
                "drafter": "self",
                "builder": "dynamic",
                "acceptance": "rejection",
                "temperature": 1.0,
            },
            "choose builder 'chain'",
        ),
        (
            {"drafter": "nobody"},
            "unknown drafter 'nobody': choose one of ar, self, other, prompt_lookup, suffix",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            jaxspec.decode(params, PROMPTS, **group_options(**options))
