"""Train BlockPilot's predictor of a request's block size, and say what it is worth.

    python -m training.policies.blockpilot --prompts corpus.jsonl.gz --drafter dflash --out policies/blockpilot

Answers to all prompts with all block sizes are kept in `out` and go on where they stopped, as the training does. Prompts are
split into training, validation and test (3 : 1 : 1 of every domain); the epoch with the largest validation score is kept.
Beside the test score stand: always the size that was best in training, always the trained size, the commonest label, the same
training with shuffled features, and the oracle, which always knows the best size and is what no predictor can pass. Decode with
the policy and `block_size` at the largest of its sizes.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxspec
from jaxspec.bench.prompts import read_prompts
from jaxspec.calibrate import about
from jaxspec.io.tokenizer import load_tokenizer
from jaxspec.policies.blockpilot import (
    BlockPilotSettings,
    Predictor,
    features,
    init_layers_of,
    make_blockpilot,
    principal_projection,
    random_projection,
    scaled,
)
from jaxspec.policies.heads import residual_mlp
from jaxspec.policies.protocol import Policy
from jaxspec.policies.store import save_policy
from training.command import one_line_errors
from training.loop import LoopOptions, fit
from training.policies.blockpilot_data import Answers, answer, labels_of, neighbourhood, split

DROPOUT = 0.2


@dataclasses.dataclass
class BlockPilotOptions:
    """Options of the training.

    Attributes:
      prompts: JSON Lines, see `jaxspec.bench.prompts.read_prompts`. out: folder of everything.
      target: `mini`, a directory or a hub id. drafter: a block drafter that ships with it, a directory or a hub id.
      reach: block sizes from the trained one less this to it plus this (the paper's k). sizes: these instead.
      builder, budget: of the trees; a chain verifies the whole block (the paper).
      label: of the block sizes, by tokens a round (`acceptance`, the paper) or a second (`speed`).
      scale, reduction: what is read of the logits, see `BlockPilotSettings`. rank: numbers of `top`, or axes of a projection.
      random: random axes instead of principal ones.
      width, layers: of the network. epochs, batch, rate, weight_decay: of AdamW; the paper names none of them.
      limit: prompts of each domain. chat: they are users' chat messages. max_new_tokens: of each answer.
      repeats: timed answers with each size.
      seed: of first weights, dropout and order. dtype: of target and drafter; None picks what suits the device.
    """

    prompts: Path
    out: Path
    target: str = "mini"
    drafter: str = "dflash"
    reach: int = 2
    sizes: tuple[int, ...] = ()
    builder: str = "chain"
    budget: int = 32
    label: Literal["acceptance", "speed"] = "acceptance"
    scale: Literal["raw", "softmax", "zscore", "l2"] = "raw"
    reduction: Literal["all", "top", "projection"] = "all"
    rank: int = 256
    random: bool = False
    width: int = 2048
    layers: int = 2
    epochs: int = 30
    batch: int = 32
    rate: float = 1e-4
    weight_decay: float = 0.01
    limit: int | None = 40
    chat: bool = False
    max_new_tokens: int = 128
    repeats: int = 1
    seed: int = 0
    dtype: str | None = None


def loss_of(params, batch, drop: bool = True):
    """Cross-entropy sums (numerator, denominator) of a batch {"x" [n, F], "label" int32 [n], "seed" int32 [n]}."""

    def dropped(layer, x):
        keys = jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(layer), seed))(batch["seed"])
        keep = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - DROPOUT, x.shape[1:]))(keys)
        return jnp.where(keep, x / (1 - DROPOUT), 0.0)

    found = residual_mlp(params, batch["x"], *([dropped] if drop else []))
    losses = optax.softmax_cross_entropy_with_integer_labels(found, batch["label"])
    return {"loss": (jnp.sum(losses), jnp.float32(len(losses)))}


def fit_predictor(x, score, part: tuple[np.ndarray, np.ndarray], options: BlockPilotOptions, run: Path):
    """Layers after the epoch with the largest validation score.

    Args:
      x: float32 [P, F]. score: float [P, C], of each block size. part: numbers of training and validation prompts.
    """
    training, validation = part
    labels = labels_of(score).astype(np.int32)
    batch = min(options.batch, len(training))
    per_epoch = len(training) // batch
    first = init_layers_of(jax.random.key(options.seed), x.shape[1], score.shape[1], options.width, options.layers)
    best = _Best(run / "best.npz", first)

    def batches(step):
        rng = np.random.default_rng((options.seed, step // per_epoch))
        rows = training[rng.permutation(len(training))[step % per_epoch * batch :][:batch]]
        return {"x": x[rows], "label": labels[rows], "seed": (step * batch + np.arange(batch)).astype(np.int32)}

    def evaluate(params):
        chosen = np.asarray(jnp.argmax(residual_mlp(params, x[validation]), axis=1))
        value = float(score[validation, chosen].mean())
        best.offer(value, params)
        return {"validation_score": value, "validation_accuracy": float(np.mean(chosen == labels[validation]))}

    optimizer = optax.adamw(options.rate, weight_decay=options.weight_decay)
    steps = options.epochs * per_epoch
    loop = LoopOptions(run, steps, save_every=max(steps // 4, 1), eval_every=per_epoch, parts=1)
    recipe = {name: str(value) for name, value in dataclasses.asdict(options).items() if name != "out"}
    fit(first, optimizer, lambda params, frozen, batch: loss_of(params, batch), batches, loop, recipe, evaluate=evaluate)
    return jax.tree.map(jnp.asarray, best.layers)


class _Best:
    """The weights with the largest score so far, on disk too, so that a run that is continued knows them."""

    def __init__(self, path: Path, like):
        self.path, self.score, self.layers, self.form = path, -np.inf, None, jax.tree.structure(like)
        if path.is_file():
            with np.load(path) as arrays:
                self.score = float(arrays["score"])
                self.layers = jax.tree.unflatten(self.form, [arrays[str(i)] for i in range(self.form.num_leaves)])

    def offer(self, score: float, layers) -> None:
        if score > self.score:
            self.score, self.layers = score, jax.device_get(layers)
            leaves = {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(self.layers))}
            new = self.path.with_suffix(".new")
            with new.open("wb") as file:
                np.savez(file, score=score, **leaves)
            new.replace(self.path)


def report(score: np.ndarray, chosen: dict[str, np.ndarray], part: tuple, trained: int | None) -> dict[str, dict[str, float]]:
    """{name: {"score", "against_best_fixed", "accuracy"}} on test prompts of predictions and of what they must beat.

    Args:
      score: float [P, C]. chosen: name -> class of each test prompt. part: numbers of training and test prompts.
      trained: class of the trained block size, if it is one.
    """
    training, test = part
    labels, count = labels_of(score), len(test)
    commonest = np.bincount(labels[training]).argmax()
    chosen = chosen | {
        "best fixed size": np.full(count, score[training].mean(0).argmax()),
        **({} if trained is None else {"trained size": np.full(count, trained)}),
        "commonest label": np.full(count, commonest),
        "oracle": labels[test],
    }
    values = {name: score[test, classes].mean() for name, classes in chosen.items()}
    return {
        name: {
            "score": float(values[name]),
            "against_best_fixed": float(values[name] / values["best fixed size"]),
            "accuracy": float(np.mean(classes == labels[test])),
        }
        for name, classes in chosen.items()
    }


def train(options: BlockPilotOptions) -> tuple[Policy, dict]:
    """Answer, train, save, and compare on test prompts.

    Raises:
      ValueError, OSError: unusable prompts, options or checkpoints.
    """
    params = jaxspec.load(options.target, drafter=options.drafter, dtype=options.dtype)
    method, config = params.spec.drafters[0]
    if not hasattr(config, "block_size"):
        raise ValueError(f"drafter {options.drafter!r} drafts no blocks: choose dflash or jetspec")
    sizes = options.sizes or neighbourhood(config.block_size, options.reach)
    tokenizer = load_tokenizer(params.spec.tokenizer) if params.spec.tokenizer else None
    prompts = read_prompts(options.prompts, tokenizer, limit=options.limit, chat=options.chat)
    settings = {"builder": options.builder, "budget": options.budget, "max_new_tokens": options.max_new_tokens}
    answers = answer(params, method, prompts, sizes, options.out / "answers.jsonl", options.repeats, **settings)
    training, validation, test = split(answers.domains)
    projection, x = inputs(answers, training, options)
    score = answers.length if options.label == "acceptance" else answers.speed
    layers = fit_predictor(x, score, (training, validation), options, options.out / "run")
    shuffled = x[np.random.default_rng(options.seed).permutation(len(x))]
    blind = fit_predictor(shuffled, score, (training, validation), options, options.out / "run-shuffled")
    trained = sizes.index(config.block_size) if config.block_size in sizes else None
    predictions = {
        "BlockPilot": np.asarray(jnp.argmax(residual_mlp(layers, x[test]), axis=1)),
        "shuffled features": np.asarray(jnp.argmax(residual_mlp(blind, shuffled[test]), axis=1)),
    }
    policy = make_blockpilot(sizes, Predictor(layers, projection), **_choices(options))
    made_for = about(params, method, {"builder": options.builder}) | {"model": options.target, "label": options.label}
    save_policy(policy, options.out / "policy", made_for)
    table = report(score, predictions, (training, test), trained)
    found = {
        "label": options.label,
        "sizes": list(sizes),
        "prompts": [len(training), len(validation), len(test)],
        "test": table,
    }
    (options.out / "report.json").write_text(json.dumps(found, indent=1) + "\n")
    return policy, found


def inputs(answers: Answers, training: np.ndarray, options: BlockPilotOptions) -> tuple[dict | None, np.ndarray]:
    """(the projection, where there is one; the network's inputs float32 [P, F]); axes come from training prompts alone."""
    projection = None
    if options.reduction == "projection" and options.random:
        projection = random_projection(jax.random.key(options.seed), answers.logits.shape[1], options.rank)
    elif options.reduction == "projection":
        projection = principal_projection(scaled(answers.logits[training], options.scale), min(options.rank, len(training) - 1))
    settings = BlockPilotSettings((), tuple(answers.sizes.tolist()), **_choices(options))
    return projection, np.asarray(features(settings, jnp.asarray(answers.logits), projection))


def _choices(options: BlockPilotOptions) -> dict:
    return {"scale": options.scale, "reduction": options.reduction, "top": options.rank}


if __name__ == "__main__":
    import tyro

    with one_line_errors():
        _, made = train(tyro.cli(BlockPilotOptions))
        print(f"{'':20} {'score':>8} {'gain':>7} {'accuracy':>8}   ({made['label']}; {made['prompts'][2]} test prompts)")
        for name, row in made["test"].items():
            print(f"{name:20} {row['score']:8.3f} {100 * (row['against_best_fixed'] - 1):+6.2f}% {row['accuracy']:8.3f}")
