"""DSpark's objective on packed rows, with a reduced draft vocabulary, and what it refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from slow_cases import slow_except

from jaxspec.core.config import TargetConfig
from jaxspec.targets.transformer import Transformer
from training.data.draft_vocab import find_slots
from training.drafters.dflash.model import make_block_config
from training.drafters.dspark import DSPARK
from training.drafters.dspark.loss import DSparkOptions, make_dspark_loss, make_dspark_row
from training.drafters.dspark.model import find_backbone, init_dspark, make_dspark_config
from training.drafters.model_options import ModelOptions
from training.loss.objective import LossOptions
from training.run.optimizer import find_matrix_axes

VOCAB = 23
SIZES = dict(hidden_size=16, num_heads=2, num_kv_heads=1, head_dim=8, ffn_size=16)
TARGET = TargetConfig(**SIZES, num_layers=2, vocab_size=VOCAB, tie_embeddings=True)
OPTIONS = ModelOptions(
    "dspark",
    block_size=3,
    num_layers=1,
    feature_layers=(0, 1),
    mask_token=22,
    draft_vocab=17,
    markov_rank=4,
)
LENGTH = 24
IDS = jnp.arange(3, 20)


def config_of(**changes):
    return make_dspark_config(dataclasses.replace(OPTIONS, **changes), TARGET)


@pytest.fixture(scope="module")
def target():
    tokens = jnp.zeros((1, 2), jnp.int32)
    variables = jax.jit(Transformer(TARGET).init)(jax.random.key(0), tokens, tokens)
    variables = jax.tree.map(lambda leaf: 8 * leaf if leaf.ndim > 1 else leaf, variables)
    head = variables["params"]["embedding"][IDS].T
    return variables | {"draft": {"ids": IDS, "lm_head": head}}


def row_of(*documents):
    """A batch of one row of documents (tokens, anchors), of whose tokens the first two are not to
    be learnt.
    """
    fields = {
        name: np.zeros((1, LENGTH), np.int32)
        for name in ("tokens", "segments", "positions", "loss_mask")
    }
    anchors, at = [], 0
    for number, (tokens, of_document) in enumerate(documents, 1):
        place = slice(at, at + len(tokens))
        fields["tokens"][0, place], fields["segments"][0, place] = tokens, number
        fields["positions"][0, place] = np.arange(len(tokens))
        fields["loss_mask"][0, at + 2 : at + len(tokens)] = 1
        anchors, at = anchors + [at + anchor for anchor in of_document], at + len(tokens)
    filled = np.array([anchors + [0] * (8 - len(anchors))], np.int32)
    return fields | {"anchors": filled, "keep": np.arange(8)[None] < len(anchors)}


DRAFTERS = [
    dict(),
    dict(markov_head="rnn", sample_from_anchor=False, block_size=4),
    dict(markov_head="gated", causal=True, sample_from_anchor=False, block_size=4),
    dict(markov_rank=0, confidence=False),
]


@pytest.mark.parametrize(
    "changes",
    slow_except(DRAFTERS[:1], DRAFTERS),
    ids=["vanilla", "rnn", "gated on a causal backbone", "no heads"],
)
@pytest.mark.thorough
def test_packing_changes_nothing_and_the_loss_falls(target, changes):
    config = config_of(**changes)
    options = LossOptions(gamma=2.0, tile=7, anchor_chunk=3)
    loss = make_dspark_loss(config, TARGET, options)

    def total(params, batch):
        found = loss(params, target, batch)
        return found["loss"][0], found

    step = jax.jit(jax.value_and_grad(total, has_aux=True))
    tokens = np.random.default_rng(0).integers(0, VOCAB, 21)
    documents = (tokens[:12], [1, 3, 8, 10]), (tokens[12:], [1, 2, 5, 7])
    params, packed = init_dspark(config, 0), row_of(*documents)
    (_, sums), gradient = step(params, packed)
    ((_, one), slope), ((_, other), second) = (
        step(params, row_of(document)) for document in documents
    )
    jax.tree.map(
        lambda a, b, c: np.testing.assert_allclose(a, b + c, rtol=1e-4, atol=1e-5), sums, one, other
    )
    jax.tree.map(
        lambda a, b, c: np.testing.assert_allclose(a, b + c, atol=1e-4), gradient, slope, second
    )
    # Blocks whose 3 tokens lie in their document: of anchors 1, 3 and 8 of 12, and 1, 2 and 5 of 9.
    assert config.depth == 3 and float(sums["accept_length"][1]) == 6
    optimizer = optax.adam(0.02)
    state, values = optimizer.init(params), []
    for _ in range(25):
        (_, sums), gradient = step(params, packed)
        values.append(float(sums["l1"][0] / sums["l1"][1]))
        updates, state = optimizer.update(gradient, state)
        params = optax.apply_updates(params, updates)
    assert values[-1] < 0.8 * values[0]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.thorough
def test_rows_against_numpy(target, known):
    """Distributions over the draft vocabulary; slots that the text's or the target's token leaves;
    the bias of the Markov head. The target's best token may be `known`.
    """
    generator = np.random.default_rng(0)
    hidden, teacher = generator.normal(size=(2, 30, 16)).astype(np.float32)
    latent, kernel = generator.normal(size=(30, 4)), generator.normal(size=(4, 17))
    label, weight = generator.integers(0, VOCAB, 30), generator.uniform(0.5, 1, 30)
    weight[4] = 0
    table = np.asarray(target["params"]["embedding"], np.float64)
    rows = {"label": label, "weight": jnp.asarray(weight, jnp.float32), "teacher": teacher}
    rows = jax.tree.map(jnp.asarray, rows)
    rows["teacher"] = rows["teacher"].at[4].set(jnp.nan)  # a row that must not count
    if known:
        rows["best"] = jnp.asarray((teacher @ table.T).argmax(-1))
    own = DSparkOptions(ce=0.3, l1=0.5, kl=0.2)
    inputs = {"hidden": jnp.asarray(hidden), "latent": jnp.asarray(latent, jnp.float32)}
    trained = {"kernel": jnp.asarray(kernel, jnp.float32)}
    per_row = make_dspark_row(TARGET, own, reduced=True)
    values, found = per_row(trained, inputs, rows, target)

    def log_softmax(x):
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    ids = np.asarray(IDS)
    log_q = log_softmax(hidden @ table[ids].T + latent @ kernel)
    whole = teacher @ table.T
    log_p = log_softmax(whole[:, ids])
    in_text, in_teacher = (np.isin(tokens, ids) for tokens in (label, whole.argmax(-1)))
    counts = weight > 0
    np.testing.assert_array_equal(found["in_text"], in_text)
    np.testing.assert_array_equal(found["in_teacher"][counts], in_teacher[counts])
    np.testing.assert_array_equal(found["right"][counts], (ids[log_q.argmax(-1)] == label)[counts])
    columns = np.asarray(find_slots(IDS, jnp.asarray(label))[0])
    ce = np.where(in_text, -log_q[np.arange(30), columns], 0)
    l1 = np.abs(np.exp(log_p) - np.exp(log_q)).sum(-1)
    kl = (np.exp(log_p) * (log_p - log_q)).sum(-1)
    expected = 0.3 * ce + np.where(in_teacher, 0.5 * l1 + 0.2 * kl, 0)
    np.testing.assert_allclose(values, np.where(counts, expected * weight, 0), rtol=2e-4, atol=1e-5)
    slope = jax.grad(lambda *args: per_row(*args, rows, target)[0].sum(), argnums=(0, 1))(
        trained, inputs
    )
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope))
    assert 0 < in_text.sum() < 30 and 0 < in_teacher.sum() < 30


def test_a_batch_with_nothing_to_learn_gives_zeros(target):
    config = config_of()
    loss = make_dspark_loss(config, TARGET, LossOptions())
    tokens = np.random.default_rng(0).integers(0, VOCAB, 12)
    batch = row_of((tokens, [1, 3])) | {"loss_mask": np.zeros((1, LENGTH), np.int32)}

    def total(params):
        sums = loss(params, target, batch)
        return sums["loss"][0], sums

    gradient, sums = jax.jit(jax.grad(total, has_aux=True))(init_dspark(config, 0))
    assert float(sums["loss"][0]) == float(sums["loss"][1]) == 0
    assert all(not leaf.any() for leaf in jax.tree.leaves(gradient))


@pytest.mark.slow
def test_bfloat16_compute_is_close(target):
    config = config_of()
    tokens = np.random.default_rng(0).integers(0, VOCAB, 20)
    batch, params = row_of((tokens, [1, 3, 8, 12])), init_dspark(config, 0)
    values = [
        jax.jit(make_dspark_loss(config, TARGET, LossOptions(dtype=dtype)))(params, target, batch)[
            "loss"
        ][0]
        for dtype in ("float32", "bfloat16")
    ]
    np.testing.assert_allclose(values[0], values[1], rtol=3e-2)


def test_the_backbone_to_start_from():
    """Itself; a DSpark drafter without heads; a DFlash drafter, whose slots must be kept."""
    config = config_of()
    assert find_backbone(config, config_of(markov_rank=8)) is config
    bare = config_of(markov_rank=0, confidence=False)
    assert find_backbone(config, bare) == bare
    shifted = config_of(sample_from_anchor=False)
    plain = make_block_config(OPTIONS, TARGET)
    assert find_backbone(shifted, plain) == plain and plain.depth == shifted.depth == 2
    with pytest.raises(ValueError, match="give --model.no-sample-from-anchor to keep its slots"):
        find_backbone(config, plain)


@pytest.mark.slow
def test_a_frozen_backbone_costs_no_backward_pass(target):
    """Three products become one: its weights' gradients and its inputs' are never computed."""
    config = config_of(num_layers=3)
    loss = make_dspark_loss(config, TARGET, LossOptions())
    batch = row_of((np.random.default_rng(0).integers(0, VOCAB, 20), [1, 3, 8, 12]))
    params = init_dspark(config, 0)
    heads = {"params": {name: params["params"][name] for name in ("markov", "confidence_head")}}
    frozen = target | {"backbone": params["params"]["backbone"]}

    def measure(trained, target):
        gradient = jax.jit(jax.grad(lambda params: loss(params, target, batch)["loss"][0]))
        return gradient.lower(trained).compile().cost_analysis()["flops"]

    assert measure(heads, frozen) < 0.5 * measure(params, target)


def test_heads_are_needed_beside_a_frozen_backbone():
    bare = config_of(markov_rank=0, confidence=False)
    with pytest.raises(ValueError, match="no head to train: give --model.markov-rank"):
        make_dspark_loss(bare, TARGET, LossOptions(), DSparkOptions(freeze_backbone=True))


@pytest.mark.parametrize(
    ("options", "own", "message"),
    [
        (dict(kind="ce"), {}, "leave kind and temperature, and set --method.dspark.ce"),
        (dict(temperature=2.0), {}, "leave kind and temperature"),
        (dict(gamma=0.0), {}, "gamma is 0.0: give a number above 0"),
        ({}, dict(ce=0.0, l1=0.0), "one of the first three above it"),
        ({}, dict(l1=-1.0), "give none below 0"),
    ],
)
def test_bad_options_are_refused(options, own, message):
    with pytest.raises(ValueError, match=message):
        make_dspark_loss(config_of(), TARGET, LossOptions(**options), DSparkOptions(**own))


def test_heads_start_without_a_say():
    ones = {"o": {"kernel": jnp.ones((2, 2))}}
    heads = {"markov": {"w1": jnp.ones((4, 2)), "w2": {"kernel": jnp.ones((2, 4))}}}
    zeroed = DSPARK.zero_residual({"params": {"backbone": ones, **heads}})["params"]
    assert not zeroed["backbone"]["o"]["kernel"].any() and not zeroed["markov"]["w1"].any()
    assert zeroed["markov"]["w2"]["kernel"].all()
    bare = DSPARK.zero_residual({"params": {"backbone": ones}})["params"]
    assert not bare["backbone"]["o"]["kernel"].any()


def test_muon_takes_no_kernels_of_heads():
    kernel = {"kernel": jnp.ones((2, 2))}
    heads = {"markov": {"w2": kernel}, "confidence_head": {"proj": kernel}, "fc": kernel}
    axes = find_matrix_axes(heads, DSPARK.outputs)
    assert axes["markov"]["w2"]["kernel"] is axes["confidence_head"]["proj"]["kernel"] is None
    assert axes["fc"]["kernel"] is not None
