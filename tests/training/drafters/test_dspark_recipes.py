"""DSpark through the training command on a toy: trained, resumed, put on a frozen drafter, written."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from slow_cases import slow_except

import jaxspec
from jaxspec.core.config import TargetConfig
from jaxspec.core.params import Params, Spec
from jaxspec.io.text.prompt_files import LabelledPrompt
from jaxspec.targets.transformer import Transformer
from training import train_drafter
from training.acceptance import EvalOptions
from training.data.pipeline import DataOptions
from training.drafters.dspark.loss import DSparkOptions, make_dspark_loss
from training.drafters.dspark.model import init_dspark, make_dspark_config
from training.drafters.model_options import ModelOptions
from training.dry_run import describe_run
from training.loss.objective import LossOptions
from training.run.checkpoints import Checkpoints
from training.run.loop import LoopOptions
from training.run.metrics import read_metrics
from training.run.optimizer import OptimizerOptions

VOCAB = 40
SIZES = dict(hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, ffn_size=16)
TARGET = TargetConfig(**SIZES, vocab_size=VOCAB, tie_embeddings=True, max_positions=64)
MODEL = dict(
    kind="dspark",
    block_size=4,
    num_layers=1,
    feature_layers=(0,),
    mask_token=39,
    markov_rank=4,
    draft_vocab=30,
)
FROZEN = {"dspark": DSparkOptions(freeze_backbone=True)}
KEPT_SLOTS = dict(kind="dspark", sample_from_anchor=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A target, and text in which every token depends on the one before."""
    folder = tmp_path_factory.mktemp("dspark")
    tokens = jnp.zeros((1, 2), jnp.int32)
    variables = jax.jit(Transformer(TARGET).init)(jax.random.key(0), tokens, tokens)
    variables["params"]["embedding"] *= 20  # the usual small weights make every token alike
    jaxspec.save(Params(variables, {}, Spec(TARGET, eos=(38,))), folder / "model")
    generator = np.random.default_rng(0)
    with (folder / "text.jsonl").open("w") as file:
        for _ in range(12):
            text = generator.integers(0, 38, 1) + 7 * np.arange(40)
            line = {"tokens": (text % 38).tolist(), "prompt_length": 4}
            file.write(json.dumps(line) + "\n")
    return folder


def options_of(folder, name, model=None, init=None, method=None, **loop):
    return train_drafter.DrafterOptions(
        data=DataOptions((folder / "text.jsonl",), length=48),
        out=folder / name,
        loop=LoopOptions(
            folder / "runs" / name, **dict(steps=2, save_every=1, eval_every=100, parts=2) | loop
        ),
        target=str(folder / "model"),
        model=ModelOptions(**MODEL | (model or {})),
        loss=LossOptions(gamma=3.0),
        method=method or {},
        optimizer=OptimizerOptions("adamw", rate=0.01, warmup=1),
        batch=4,
        anchors=8,
        init=init,
    )


@pytest.fixture(scope="module")
def plain(folder):
    """A DFlash drafter in `dflash`."""
    options = options_of(folder, "dflash", dict(kind="dflash"))
    return train_drafter.train_drafter(options)


@pytest.fixture(scope="module")
def whole(folder):
    """A DSpark drafter in `whole`, its acceptance measured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "training.acceptance.read_prompts", lambda *_, **__: [LabelledPrompt("ids", [1, 2, 3])]
        )
        options = options_of(folder, "whole", steps=4)
        evaluation = EvalOptions(folder / "prompts.jsonl", max_new_tokens=16)
        return train_drafter.train_drafter(dataclasses.replace(options, eval=evaluation))


def same(one, other, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), one, other)


@pytest.mark.slow
def test_a_trained_drafter_is_measured_written_and_decodes(folder, whole):
    found = jaxspec.load(
        folder / "model", drafter={"dspark": str(folder / "whole")}, dtype="float32"
    )
    assert found.spec.drafters == whole.spec.drafters and found.spec.drafter("dspark").depth == 4
    same(found.drafters, whole.drafters, rtol=1e-2, atol=1e-3)
    metrics = read_metrics(folder / "runs" / "whole" / "metrics.jsonl")
    assert metrics[-1]["tau_ids"] >= 1
    names = {"loss", "ce", "l1", "confidence", "accept_length", "accept_length_sampled"}
    assert names | {"accuracy_4"} <= set(metrics[-2])
    prompts = [[1, 2, 3], [5, 4]]
    texts = [
        [out.tokens for out in jaxspec.decode(found, prompts, drafter=m, max_new_tokens=16)]
        for m in ("ar", "dspark")
    ]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(folder, whole):
    stopped = options_of(folder, "stopped", steps=4, stop_after=3)
    train_drafter.train_drafter(stopped)
    again = dataclasses.replace(stopped, loop=dataclasses.replace(stopped.loop, stop_after=None))
    same(train_drafter.train_drafter(again).drafters, whole.drafters, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("head", slow_except(["rnn"], ["vanilla", "rnn"]))
def test_heads_on_a_frozen_drafter(folder, plain, head):
    """The backbone keeps its bits, and only the heads are in the checkpoint."""
    options = options_of(
        folder, head, KEPT_SLOTS | dict(markov_head=head), folder / "dflash", FROZEN
    )
    found = train_drafter.train_drafter(options).drafters["dspark"]["params"]
    stored = jaxspec.load(
        folder / "model", drafter={"dflash": str(folder / "dflash")}, dtype="float32"
    )
    same(found["backbone"], stored.drafters["dflash"]["params"], rtol=0)
    recipe, state = Checkpoints.read(options.loop.run / "checkpoints")
    assert set(state["params"]["params"]) == {"markov", "confidence_head"}
    assert recipe["method"]["freeze_backbone"] and recipe["init"] == "dflash"
    again = jaxspec.load(folder / "model", drafter={"dspark": str(options.out)}, dtype="float32")
    config = again.spec.drafter("dspark")
    assert not config.sample_from_anchor and config.depth == 3 and config.markov_head == head
    heads = sum(
        leaf.size for name in found if name != "backbone" for leaf in jax.tree.leaves(found[name])
    )
    assert f"{heads:,} parameters" in describe_run(options)


CHANGES = ({}, KEPT_SLOTS, KEPT_SLOTS | dict(causal=True))


@pytest.mark.slow
@pytest.mark.parametrize("changes", slow_except(CHANGES[2:], CHANGES))
def test_rounds_of_decoding_are_as_long_as_training_says(changes):
    """`accept_length` at the places where the rounds of a decoded text began: heads that read the
    text's own tokens accept what the chain accepts, which drafts from its own.
    """
    spec = dataclasses.replace(TARGET, tie_embeddings=False)  # its greedy text does not repeat
    tokens = jnp.zeros((1, 2), jnp.int32)
    variables = jax.jit(Transformer(spec).init)(jax.random.key(1), tokens, tokens)
    variables = jax.tree.map(lambda leaf: 20 * leaf if leaf.ndim > 1 else leaf, variables)
    model = dict(markov_head="rnn", draft_vocab=None) | changes
    config = make_dspark_config(ModelOptions(**MODEL | model), spec)
    prompt, loss = [1, 2, 3], make_dspark_loss(config, spec, LossOptions())
    target = Params(variables, {}, Spec(spec))
    (out,) = jaxspec.decode(target, [prompt], drafter="ar", max_new_tokens=40)
    tokens = np.array([prompt + out.tokens], np.int32)
    fields = {"tokens": tokens, "positions": np.arange(tokens.size, dtype=np.int32)[None]}
    fields |= dict.fromkeys(("segments", "loss_mask"), np.ones_like(tokens))
    some = fields | {"anchors": np.arange(2, 38, 3)[None], "keep": np.ones((1, 12), bool)}
    params, optimizer = init_dspark(config, 0), optax.adam(0.02)

    @jax.jit
    def step(params, state):  # on a third of the anchors, so that some rounds are long, some short
        slope = jax.grad(lambda params: loss(params, variables, some)["loss"][0])(params)
        updates, state = optimizer.update(slope, state)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for _ in range(30):
        params, state = step(params, state)
    named = dataclasses.replace(target.spec, drafters=(("dspark", config),))
    bundle = Params(variables, {"dspark": params}, named)
    (again,) = jaxspec.decode(
        bundle,
        [prompt],
        drafter="dspark",
        speculation=jaxspec.Speculation(builder="chain"),
        max_new_tokens=40,
    )
    assert again.tokens == out.tokens
    measure, lengths = jax.jit(lambda batch: loss(params, variables, batch)["accept_length"]), []
    rounds = again.per_round
    for place, committed in zip(rounds.context, rounds.tokens, strict=True):
        length, whole = measure(
            fields | {"anchors": np.array([[place]]), "keep": np.ones((1, 1), bool)}
        )
        if whole:  # the text goes on for a whole block
            assert int(length) == committed
            lengths.append(int(length))
    assert len(set(lengths)) > 1


@pytest.mark.slow
def test_a_drafter_to_start_from(folder, plain, whole):
    """Whole, or the backbone alone with new heads, all of it trained further."""
    options = options_of(folder, "further", init=folder / "whole")
    again = train_drafter.train_drafter(options).drafters["dspark"]["params"]
    before = whole.drafters["dspark"]["params"]
    assert abs(again["markov"]["w1"] - before["markov"]["w1"]).max() < 0.05
    options = options_of(folder, "joint", KEPT_SLOTS, folder / "dflash")
    joint = train_drafter.train_drafter(options).drafters["dspark"]["params"]
    fused, start = (
        params["fc"]["kernel"] for params in (joint["backbone"], plain.drafters["dflash"]["params"])
    )
    assert 0 < abs(fused - start).max() < 0.05


@pytest.mark.slow
def test_errors_say_what_to_do(folder, plain, whole):
    for model, init, method, message in [
        (KEPT_SLOTS, None, FROZEN, "the backbone is frozen: give --init"),
        ({}, "dflash", FROZEN, "give --model.no-sample-from-anchor to keep its slots"),
        (KEPT_SLOTS | dict(num_layers=2), "dflash", None, "give its own sizes"),
        (dict(markov_rank=8), "whole", None, "give its own sizes"),
        (dict(markov_rank=-1), None, None, "markov_rank is -1: give 0"),
        (dict(markov_rank=0, confidence=False), "whole", FROZEN, "give its own sizes"),
    ]:
        options = options_of(folder, "bad", model, init and folder / init, method)
        with pytest.raises(ValueError, match=message):
            train_drafter.train_drafter(options)
    assert not (folder / "bad").exists()
