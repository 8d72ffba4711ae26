"""The network, the tables and the chain of the authors' own code."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays, golden, records
from treeflash_golden import load_treeflash

from jaxspec.core.cache import allocate, append
from jaxspec.drafters.base import Committed, TargetHead
from jaxspec.drafters.registry import make_drafter, record_of
from jaxspec.drafters.treeflash.network import TreeFlash, TreeFlashConfig
from jaxspec.targets.transformer import Transformer

golden("treeflash")
DATA = arrays("treeflash", "forward.npz")
LENGTH = int(DATA["context_len"])


class Drafts:
    """A drafter with its cache filled up to a context."""

    def __init__(self, model="swiglu"):
        params = load_treeflash(model)
        self.config, self.variables = params.spec.drafter("treeflash"), params.drafters["treeflash"]
        self.target = Transformer(params.spec.target).bind(params.target)
        self.head = TargetHead(self.target.embed, self.target.logits)
        self.bundle = make_drafter(self.config)
        self.apply = jax.jit(
            lambda *args, method: TreeFlash(self.config).apply(
                self.variables, *args, method=method
            ),
            static_argnames="method",
        )

    def absorb(self, cache, features):
        positions = cache.length[:, None] + jnp.arange(features.shape[1])
        k, v = self.apply(jnp.asarray(features), positions, method="context_kv")
        return append(cache, (k,), (v,), jnp.array([features.shape[1]]))

    def block(self, cache, anchor):
        """Slots of the block after `anchor`, before the final norm."""
        ids = np.full((1, self.config.block_size), self.config.mask_token_id)
        ids[0, 0] = anchor
        positions = cache.length[:, None] + jnp.arange(self.config.block_size)
        return ids, self.apply(self.target.embed(ids), positions, cache, method="__call__")

    def tables(self, residual, anchor, conditions, children):
        """The authors' tables: most probable tokens, and what follows them in every slot."""
        marginal = self.target.logits(self.apply(residual, method="marginal"))
        top = jax.lax.top_k(marginal[0, :-1], conditions)[1].at[0].set(anchor)
        hidden = self.apply(
            jnp.repeat(residual[:, 1:, None], conditions, 2),
            self.target.embed(top)[None],
            method="correct",
        )
        logits = self.target.logits(hidden)[0]
        logq, token = jax.lax.top_k(jax.nn.log_softmax(logits), children)
        return np.asarray(top), np.asarray(logits), np.asarray(token), np.asarray(logq)


@pytest.fixture(scope="module")
def drafts():
    return Drafts()


@pytest.fixture(scope="module")
def context(drafts):
    cache = allocate(drafts.config, 1, LENGTH + 16, jnp.float32)
    return drafts.absorb(cache, DATA["target_features"][:, :LENGTH])


def close(ours, theirs, atol=1e-4):
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=0, atol=atol)


def test_features_of_the_target(drafts):
    ids = DATA["input_ids"]
    assert drafts.config.feature_layers == tuple(DATA["target_layer_ids"])
    positions = jnp.arange(ids.shape[1])[None]
    out = drafts.target(ids, positions, feature_layers=drafts.config.feature_layers)
    close(out.features, DATA["target_features"])


def test_context_and_block(drafts, context):
    fused = TreeFlash(drafts.config).apply(
        drafts.variables,
        DATA["target_features"][:, :LENGTH],
        method=lambda drafter, features: drafter.backbone.context(features),
    )
    close(fused, DATA["ctx_fused"])
    close(context.k[0][0, :, :, :LENGTH], DATA["cache_k_layer0"])
    close(context.v[0][0, :, :, :LENGTH], DATA["cache_v_layer0"])
    ids, residual = drafts.block(context, DATA["input_ids"][0, LENGTH])
    np.testing.assert_array_equal(ids, DATA["draft_input_ids"])
    close(residual, DATA["block_hidden_pre_norm"])
    normed = drafts.apply(residual, method="marginal")
    close(normed, DATA["block_hidden"])
    close(drafts.target.logits(normed), DATA["marginal_logits"])


def test_correction_and_tables(drafts, context):
    anchor = DATA["input_ids"][0, LENGTH]
    _, conditions, children = DATA["transition_tokens"].shape
    _, residual = drafts.block(context, anchor)
    top, logits, token, logq = drafts.tables(residual, anchor, conditions, children)
    np.testing.assert_array_equal(top[1:], DATA["regular_top_preds"][0, 1:])
    close(logits, DATA["corrected_logits"][0])
    np.testing.assert_array_equal(token, DATA["transition_tokens"])
    close(logq, DATA["transition_log_probs"])
    normed = drafts.apply(residual, method="marginal")
    correction = TreeFlash(drafts.config).apply(
        drafts.variables,
        drafts.target.embed(jnp.asarray(top))[None],
        jnp.repeat(normed[:, 1:, None], conditions, 2),
        method=lambda drafter, previous, hidden: drafter.correction(previous, hidden),
    )
    close(correction, DATA["correction"])


def test_the_context_grows(drafts, context):
    _, conditions, children = DATA["inc_transition_tokens"].shape
    more = drafts.absorb(context, DATA["target_features"][:, LENGTH : LENGTH + 3])
    assert int(more.length[0]) == DATA["inc_cache_len"]
    anchor = DATA["input_ids"][0, LENGTH + 3]
    _, residual = drafts.block(more, anchor)
    close(drafts.apply(residual, method="marginal"), DATA["inc_block_hidden"])
    _, _, token, logq = drafts.tables(residual, anchor, conditions, children)
    np.testing.assert_array_equal(token, DATA["inc_transition_tokens"])
    close(logq, DATA["inc_transition_log_probs"])


def test_given_previous_tokens(drafts, context):
    _, residual = drafts.block(context, DATA["input_ids"][0, LENGTH])
    previous = drafts.target.embed(DATA["tf_prev_ids"])
    hidden = drafts.apply(residual, previous, method="correct")
    close(hidden, DATA["tf_hidden"])
    close(drafts.target.logits(hidden), DATA["tf_logits"])


@functools.cache
def chains(model):
    """A function (tokens of a text [1, T], position of an anchor) -> the authors' chain [depth]:
    every slot after the most probable token of the slot before, not after the chain's own.
    """
    drafts = Drafts(model)
    record, config = record_of(drafts.config), drafts.config

    def chain(tokens, anchor):
        positions = jnp.arange(tokens.shape[1])[None]
        features = drafts.target(tokens, positions, feature_layers=config.feature_layers).features
        state = drafts.bundle.init(1, tokens.shape[1], jnp.float32)
        zero = jnp.zeros(1, jnp.int32)
        new = Committed(tokens, tokens, features, zero, zero + tokens.shape[1])
        state = drafts.bundle.absorb(drafts.variables, state, drafts.head, new)
        state = record.rewind(state, anchor[None])
        root = tokens[:, anchor]
        _, slots = drafts.bundle.start(drafts.variables, state, drafts.head, root, config.depth)
        module = TreeFlash(config)
        normed = module.apply(drafts.variables, slots, method="marginal")
        best = drafts.target.logits(normed).argmax(-1)
        previous = drafts.target.embed(jnp.concatenate([root[:, None], best[:, :-1]], axis=1))
        hidden = module.apply(drafts.variables, slots, previous, method="correct")
        return drafts.target.logits(hidden).argmax(-1)[0]

    return jax.jit(chain)


@pytest.mark.parametrize("model", ["swiglu", "marginal"])
def test_the_authors_chains(model):
    found = [one for one in records("treeflash", "trees_index.json") if one.get("is_chain")]
    found = [one for one in found if one["model"] == model]
    width = max(len(one["context"]) for one in found)
    for one in found:
        context = np.pad(one["context"], (0, width - len(one["context"])))[None]
        chain = chains(model)(jnp.asarray(context, jnp.int32), len(one["context"]) - 1)
        assert chain.tolist() == one["chain_tokens"][1:]


@pytest.mark.parametrize("model", ["swiglu", "marginal"])
def test_the_authors_chains_of_every_round(model):
    for run in records("treeflash", "decode.json"):
        if not run.get("is_chain") or run["model"] != model:
            continue
        text = jnp.asarray(run["output_ids"], jnp.int32)[None]
        at = len(run["prompt"])
        for step in run["rounds"]:
            if at >= len(run["output_ids"]):
                break
            assert chains(model)(text, at).tolist() == step["draft"]
            at += step["acceptance_length"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"causal": True}, "every slot of TreeFlash sees the whole block"),
        ({"draft_vocab_size": 5}, "no reduced draft vocabulary"),
        ({"conditions": 0}, "conditions is 0"),
    ],
)
def test_configs_that_make_no_sense(fields, words):
    sizes = {"hidden_size": 8, "num_layers": 1, "num_heads": 1, "num_kv_heads": 1}
    with pytest.raises(ValueError, match=words):
        TreeFlashConfig(**sizes, head_dim=8, ffn_size=8, vocab_size=9, **fields)
