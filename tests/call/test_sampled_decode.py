"""The distribution of sampled text of the whole decode loop: by the rule that depends on what the
drafter drew, and under a policy that cuts trees."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.core.config import TargetConfig
from jaxspec.core.params import Params, Spec
from jaxspec.costs.round_costs import make_costs
from jaxspec.drafters.draft_model.drafter import DraftModelConfig
from jaxspec.drafters.dspark.network import DSparkConfig
from jaxspec.drafters.dspark.shapes import init_variables
from jaxspec.policies.bastion.controller import make_bastion
from jaxspec.targets.transformer import Transformer

VOCAB, PROMPT, LENGTH, BATCH, SEEDS = 5, [1, 3, 2], 4, 64, 90
SIZES = {
    "hidden_size": 16,
    "num_layers": 1,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 16,
    "ffn_size": 24,
    "vocab_size": VOCAB,
}
TARGET = TargetConfig(**SIZES, max_positions=64)

STATIC = "static/paths=[[0],[1],[0,0],[0,1],[1,0]]"

# Rows cost enough that the size depends on the scores.
TABLE = make_costs((1, 2, 4, 8), (0,), (0.02,), [[1.0], [1.02], [1.1], [1.25]])


def model(seed: int):
    token = jnp.zeros((1, 2), jnp.int32)
    variables = jax.jit(Transformer(TARGET).init)(jax.random.key(seed), token, token)
    return jax.tree.map(lambda leaf: leaf * 8 if leaf.ndim > 1 else leaf, variables)


def exact(target, penalise=lambda logits, before: logits) -> np.ndarray:
    """Probability of every text of LENGTH tokens after the prompt, in the order of
    `itertools.product`.

    Args:
      penalise: changes the logits [V] of a token, given the tokens of the text before it.
    """
    texts = np.array(list(itertools.product(range(VOCAB), repeat=LENGTH)))
    rows = jnp.asarray(np.hstack([np.tile(PROMPT, (len(texts), 1)), texts[:, :-1]]), jnp.int32)
    network = Transformer(TARGET)
    hidden = network.apply(
        target, rows, jnp.broadcast_to(jnp.arange(rows.shape[1]), rows.shape)
    ).hidden
    logits = np.array(network.apply(target, hidden[:, len(PROMPT) - 1 :], method="logits"))
    for text, rows in zip(texts.tolist(), logits, strict=True):
        for place in range(LENGTH):
            rows[place] = penalise(rows[place], text[:place])
    logprob = jax.nn.log_softmax(logits, axis=-1)
    return np.exp(
        np.take_along_axis(np.asarray(logprob, np.float64), texts[..., None], -1)[..., 0].sum(-1)
    )


@pytest.mark.slow
@pytest.mark.parametrize("builder", ["chain", "static/paths=[[0],[1],[0,0],[0,1],[1,0],[0,0,0]]"])
def test_rejection_sampling_of_a_small_model_draws_from_the_target(builder):
    """Speculative sampling through the loop: the draft of every node is sampled from its own
    distribution, after its own path.

    A chi-square test over all texts of four tokens; the same test must tell the drafter's
    distribution from the target's.
    """
    target, small = model(0), model(1)
    params = Params(
        target, {"draft_model": small}, Spec(TARGET, (("draft_model", DraftModelConfig(TARGET)),))
    )
    options = {
        "drafter": "draft_model",
        "builder": builder,
        "budget": 4,
        "acceptance": "rejection",
        "temperature": 1.0,
    }
    outs = [
        out
        for seed in range(SEEDS)
        for out in jaxspec.decode(
            params, [PROMPT] * BATCH, max_new_tokens=LENGTH, seed=seed, **group_options(**options)
        )
    ]
    cell = np.array([out.tokens for out in outs]) @ VOCAB ** np.arange(LENGTH)[::-1]
    observed = np.bincount(cell, minlength=VOCAB**LENGTH)
    drafted = sum(out.stats.emitted - out.stats.rounds - 1 for out in outs)
    assert drafted > 0.2 * len(outs), "too few drafted tokens were accepted to test anything"
    assert p_value(observed, exact(target)) > 1e-3
    assert p_value(observed, exact(small)) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("acceptance", ["match", "sequential", "rejection"])
def test_penalised_samples_are_those_of_plain_decoding(acceptance):
    """A chi-square test as above, for each rule; the target without penalties must fail it."""
    target, small = model(0), model(1)
    params = Params(
        target, {"draft_model": small}, Spec(TARGET, (("draft_model", DraftModelConfig(TARGET)),))
    )
    penalties = dict(presence_penalty=0.8, frequency_penalty=0.6, repetition_penalty=1.4)
    options = dict(
        drafter="draft_model", builder=STATIC, budget=6, acceptance=acceptance, temperature=1.0
    )

    def penalise(logits, before):
        logits = logits.copy()
        for token in {*PROMPT, *before}:
            logits[token] *= 1.4 if logits[token] < 0 else 1 / 1.4
        for token in set(before):
            logits[token] -= 0.8 + 0.6 * before.count(token)
        return logits

    outs = [
        out
        for seed in range(SEEDS)
        for out in jaxspec.decode(
            params,
            [PROMPT] * BATCH,
            max_new_tokens=LENGTH,
            seed=seed,
            **group_options(**options, **penalties),
        )
    ]
    cell = np.array([out.tokens for out in outs]) @ VOCAB ** np.arange(LENGTH)[::-1]
    observed = np.bincount(cell, minlength=VOCAB**LENGTH)
    drafted = sum(out.stats.emitted - out.stats.rounds - 1 for out in outs)
    assert drafted > 0.2 * len(outs), "too few drafted tokens were accepted to test anything"
    assert p_value(observed, exact(target, penalise)) > 1e-3
    assert p_value(observed, exact(target)) < 1e-9


def dspark() -> tuple[dict, DSparkConfig]:
    """A drafter with a Markov head that matters, and its config."""
    config = DSparkConfig(
        **SIZES,
        block_size=3,
        mask_token_id=0,
        feature_layers=(0,),
        target_hidden_size=16,
        markov_rank=4,
        confidence=False,
        confidence_with_markov=False,
    )
    variables = init_variables(config)
    return jax.tree.map(lambda leaf: leaf * 8 if leaf.ndim > 1 else leaf, variables), config


@pytest.mark.slow
@pytest.mark.parametrize(
    ("builder", "how"),
    [
        *itertools.product(("chain", STATIC), ("rejection", "coupled")),
        ("lattice", "coupled"),  # its shape depends on the tokens, so rejection is refused
    ],
)
def test_candidates_after_their_own_branch_draw_from_the_target(builder, how):
    """DSpark conditions every node on its branch; a chi-square test as above, for true rejection
    and for candidates under the target's noise.
    """
    target, (drafter, config) = model(0), dspark()
    params = Params(target, {"dspark": drafter}, Spec(TARGET, (("dspark", config),)))
    options = {
        "drafter": "dspark",
        "builder": builder,
        "budget": 6,
        "acceptance": "rejection" if how == "rejection" else "match",
        "temperature": 1.0,
        "max_new_tokens": LENGTH,
    }
    texts = [
        out.tokens
        for seed in range(SEEDS)
        for out in jaxspec.decode(params, [PROMPT] * BATCH, seed=seed, **group_options(**options))
    ]
    cell = np.array(texts) @ VOCAB ** np.arange(LENGTH)[::-1]
    observed = np.bincount(cell, minlength=VOCAB**LENGTH)
    assert p_value(observed, exact(target)) > 1e-3
    assert p_value(observed, exact(model(1))) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("acceptance", ["match", "sequential"])
def test_a_controlled_decode_draws_from_the_target(acceptance):
    """A chi-square test over all texts of four tokens; the same test must tell the drafter's
    distribution from the target's.
    """
    target, small = model(0), model(1)
    params = Params(
        target, {"draft_model": small}, Spec(TARGET, (("draft_model", DraftModelConfig(TARGET)),))
    )
    options = {
        "drafter": "draft_model",
        "builder": "dynamic/w3",
        "depth": 3,
        "budget": 8,
        "temperature": 1.0,
    }
    policy, outs = make_bastion(TABLE), []
    for seed in range(SEEDS):
        # What was learned of one call's scores decides about the sizes of the next.
        call = {"max_new_tokens": LENGTH, "seed": seed, "policy": policy, "acceptance": acceptance}
        outs += jaxspec.decode(params, [PROMPT] * BATCH, **group_options(**options, **call))
        policy = outs[-1].policy
    cell = np.array([out.tokens for out in outs]) @ VOCAB ** np.arange(LENGTH)[::-1]
    observed = np.bincount(cell, minlength=VOCAB**LENGTH)
    drafted = sum(out.stats.emitted - out.stats.rounds - 1 for out in outs)
    assert drafted > 0.1 * len(outs), "too few drafted tokens were accepted to test anything"
    assert np.count_nonzero(np.asarray(policy.state.sizes)) > 1, "one size alone tests no choice"
    assert p_value(observed, exact(target)) > 1e-3
    assert p_value(observed, exact(small)) < 1e-9


def p_value(observed: np.ndarray, probability: np.ndarray) -> float:
    """Of a chi-square test; cells with fewer than 5 expected are merged."""
    expected = probability * observed.sum()
    rare = expected < 5
    expected = np.append(expected[~rare], expected[rare].sum())
    observed = np.append(observed[~rare], observed[rare].sum())
    return float(
        scipy.stats.chi2.sf(((observed - expected) ** 2 / expected).sum(), len(expected) - 1)
    )
