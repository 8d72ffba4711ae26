"""Train the head of Disco, SpecDec++ or C2T, which predicts whether a drafted token is accepted.

    python -m jaxspec.training.policies.classifiers disco --drafter eagle3 \\
      --prompts corpus.jsonl.gz --out policies/disco

Labels come from greedy answers to the prompts, drafted with EAGLE's dynamic trees
(`training.policies.labels`), and are kept in `out`. Run the same command again to continue a
stopped run; labels that were made with another model, other prompts or other trees are refused. A
quarter of the prompts is held out. The command prints the head's figures on them, and those of
always predicting the more frequent class. The rule `c2t-ltd` is Learning to Draft's variant of C2T.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.stats
import tyro

from jaxspec.builders import dynamic
from jaxspec.core.params import Params
from jaxspec.io.fingerprint import fingerprint
from jaxspec.io.text.prompt_files import LabelledPrompt
from jaxspec.policies.learned import c2t, disco, specdec_plus
from jaxspec.policies.learned.networks import silu_head
from jaxspec.policies.protocol import Policy
from jaxspec.policies.store import save_policy
from jaxspec.tuner.calibrate.by_rows import about

from ..data.splits import HELD_OUT, mark_held_out
from ..run.command import one_line_errors
from ..run.loop import LoopOptions, fit
from .labels import Labels, RecorderConfig, collect, load_labels, save_labels
from .options import PromptsToAnswer

RULES = ("disco", "specdec_plus", "c2t", "c2t-ltd")
# Epochs and rates of the papers; where a paper gives none, of Learning to Draft's comparison.
EPOCHS = {"disco": 50, "specdec_plus": 5, "c2t": 10, "c2t-ltd": 50}
RATES = {"disco": 1e-4, "specdec_plus": 1e-4, "c2t": 1e-3, "c2t-ltd": 1e-4}
# Labels per gradient step, from the papers of SpecDec++ and C2T; Learning to Draft gives none.
BATCHES = {"disco": 64, "specdec_plus": 32, "c2t": 1024, "c2t-ltd": 256}
WEIGHT_DECAY = 0.01


@dataclasses.dataclass
class HeadOptions(PromptsToAnswer):
    """Options for training a head.

    Attributes:
      rule: the rule to train a head for.
      out: folder for the policy, the labels and the run's metrics.
      tree_width: width of the dynamic trees.
      depth: of the trees.
      budget: verification budget of the trees.
      width: hidden units of SpecDec++'s head.
      threshold: of the rule, see its settings; None takes the rule's default.
      epochs: passes over the labels; None takes the rule's, see `EPOCHS`.
      rate: learning rate; None takes the rule's, see `RATES`.
      batch: labels per gradient step; None takes the rule's, see `BATCHES`.
      rejected_weight: weight of rejected tokens (SpecDec++'s paper: 6); None gives both classes the
        same total weight.
      balance: train on as many labels of each class, and drop the rest of the commoner one
        (Learning to Draft), instead of weighing the classes.
      seed: of initial weights and of the order of labels.
    """

    rule: Annotated[Literal["disco", "specdec_plus", "c2t", "c2t-ltd"], tyro.conf.Positional]
    out: Path
    tree_width: int = 10
    depth: int = 9
    budget: int = 60
    threshold: float | None = None
    width: int = specdec_plus.WIDTH
    epochs: int | None = None
    rate: float | None = None
    batch: int | None = None
    rejected_weight: float | None = None
    balance: bool = False
    seed: int = 0


class Examples(NamedTuple):
    """A head's inputs and the answers it should give.

    Attributes:
      x: float [n, F], features.
      accepted: bool [n], whether the node was accepted.
      prompt: int32 [n], number of the prompt.
    """

    x: np.ndarray
    accepted: np.ndarray
    prompt: np.ndarray


def make_examples(rule: str, labels: Labels) -> Examples:
    """Make the examples that a rule's head learns from."""
    if rule == "specdec_plus":
        return Examples(labels.hidden, labels.fed_accepted, labels.fed_prompt)
    if rule == "disco":
        # Disco asks about a level's likeliest node only. Its features describe the distribution, so
        # siblings have the same features.
        best = labels.best
        x = disco.disco_features(labels.top[best], labels.entropy[best], labels.depth[best])
        return Examples(np.asarray(x), labels.accepted[best], labels.prompt[best])
    x = c2t.c2t_features(
        "ltd" if rule == "c2t-ltd" else "paper", labels.logprob, labels.entropy, labels.depth
    )
    return Examples(np.asarray(x), labels.accepted, labels.prompt)


def split_examples(data: Examples, domains: Sequence[str]) -> tuple[Examples, Examples]:
    """Split examples by prompt into (training, held out), see `training.data.splits.mark_held_out`.

    Args:
      data: the examples.
      domains: domain of every prompt.

    Raises:
      ValueError: one of the two parts would be empty.
    """
    held = mark_held_out(domains)[data.prompt]
    if not held.any() or held.all():
        count = len(np.unique(data.prompt))
        raise ValueError(
            f"labels of {count} prompts cannot be split: "
            f"give at least {HELD_OUT} prompts of a domain"
        )
    return Examples(*(x[~held] for x in data)), Examples(*(x[held] for x in data))


def balance_examples(data: Examples, seed: int) -> Examples:
    """Keep as many examples of each class: all of the rarer one, and others drawn at random.

    Raises:
      ValueError: there are none of one class.
    """
    yes, no = np.flatnonzero(data.accepted), np.flatnonzero(~data.accepted)
    count = min(len(yes), len(no))
    if not count:
        raise ValueError("all labels are of one class: give more prompts, or leave --balance out")
    rng = np.random.default_rng(seed)
    drawn = [rng.choice(rows, count, replace=False) for rows in (yes, no)]
    kept = np.sort(np.concatenate(drawn))
    return Examples(*(x[kept] for x in data))


def make_rule_weights(rule: str, data: Examples, options: HeadOptions):
    """Make the head's initial weights."""
    key = jax.random.key(options.seed)
    if rule == "specdec_plus":
        return specdec_plus.init_specdec_plus(key, data.x.shape[1], options.width)
    return (
        disco.init_disco(key)
        if rule == "disco"
        else c2t.init_c2t(key, "ltd" if rule == "c2t-ltd" else "paper")
    )


def logits(rule: str, weights, x: jax.Array) -> jax.Array:
    """Apply the head to features [n, F]: logits [n]."""
    if rule == "specdec_plus":
        return silu_head(weights, x.astype(jnp.float32))
    return disco.disco_logit(weights, x) if rule == "disco" else c2t.c2t_logit(weights, x)


def make_classifier_rule(rule: str, weights, threshold: float | None = None) -> Policy:
    """Make the policy from trained weights; threshold None keeps the rule's default."""
    constants: dict[str, Any] = {} if threshold is None else {"threshold": threshold}
    if rule == "specdec_plus":
        return specdec_plus.make_specdec_plus(weights, **constants)
    if rule == "disco":
        return disco.make_disco(weights, **constants)
    return c2t.make_c2t(
        weights, **(c2t.PRESETS["c2t-ltd"] if rule == "c2t-ltd" else {}) | constants
    )


def figures(found: np.ndarray, accepted: np.ndarray) -> dict[str, float]:
    """Compare logits [n] with labels bool [n].

    Returns:
      {"accuracy", "balanced_accuracy": mean of both classes' accuracies, "auc": area under the ROC
      curve, "commoner_answer": share of the more frequent class}.
    """
    said, rank = found > 0, scipy.stats.rankdata(found)
    yes, no = int(accepted.sum()), int((~accepted).sum())
    area = (rank[accepted].sum() - yes * (yes + 1) / 2) / max(yes * no, 1)
    both = [np.mean(said[accepted]) if yes else np.nan, np.mean(~said[~accepted]) if no else np.nan]
    return {
        "accuracy": float(np.mean(said == accepted)),
        "balanced_accuracy": float(np.nanmean(both)),
        "auc": float(area) if yes and no else float("nan"),
        "commoner_answer": max(yes, no) / len(found),
    }


def train_classifier(options: HeadOptions) -> tuple[Policy, dict[str, float]]:
    """Label nodes, train the head and save the policy.

    Returns:
      (the policy, its figures on held-out prompts).

    Raises:
      ValueError, OSError: prompts, options or checkpoints are unusable.
    """
    params = options.load()
    drafter = params.spec.default_drafter
    prompts = options.read(params)
    found = make_examples(options.rule, _labels(params, drafter, prompts, options))
    rule = options.rule
    training, held = split_examples(found, [prompt.domain for prompt in prompts])
    if options.balance:
        training = balance_examples(training, options.seed)
    yes = training.accepted.mean()
    # Cross-entropy weighted by class; the weights of the training labels have mean 1.
    weights = (
        (0.5 / max(1 - yes, 1e-6), 0.5 / max(yes, 1e-6))
        if options.rejected_weight is None
        else (options.rejected_weight, 1)
    )
    batch = min(options.batch or BATCHES[rule], len(training.x))
    steps = max((options.epochs or EPOCHS[rule]) * len(training.x) // batch, 1)

    def batches(step):
        per_epoch = len(training.x) // batch
        rng = np.random.default_rng((options.seed, step // per_epoch))
        rows = rng.permutation(len(training.x))[step % per_epoch * batch :][:batch]
        return {"x": training.x[rows], "accepted": training.accepted[rows].astype(np.float32)}

    def loss(params, frozen, batch):
        target = batch["accepted"]
        weight = jnp.where(target > 0, weights[1], weights[0])
        losses = optax.sigmoid_binary_cross_entropy(logits(rule, params, batch["x"]), target)
        return {"loss": (jnp.sum(weight * losses), jnp.sum(weight))}

    def evaluate(params):
        return figures(np.asarray(logits(rule, params, jnp.asarray(held.x))), held.accepted)

    first = make_rule_weights(rule, training, options)
    optimizer = optax.adamw(options.rate or RATES[rule], weight_decay=WEIGHT_DECAY)
    run = LoopOptions(
        options.out / "run",
        steps,
        save_every=max(steps // 4, 1),
        eval_every=max(steps // 10, 1),
        parts=1,
    )
    recipe = {
        name: str(value) for name, value in dataclasses.asdict(options).items() if name != "out"
    }
    trained = jax.tree.map(
        jnp.asarray, fit(first, optimizer, loss, batches, run, recipe, evaluate=evaluate)
    )
    policy = make_classifier_rule(rule, trained, options.threshold)
    save_policy(
        policy,
        options.out,
        about(params, drafter, {"builder": dynamic()}) | {"model": options.target},
    )
    return policy, evaluate(trained) | {"labels": len(training.x), "held_out": len(held.x)}


def _labels(
    params: Params, drafter: str, prompts: Sequence[LabelledPrompt], options: HeadOptions
) -> Labels:
    """Read the labels in `out`, or make them if there are none.

    Raises:
      ValueError: the labels in `out` were made with another model, other prompts or other trees.
    """
    path = options.out / "labels.npz"
    settings = {"width": options.tree_width} | {
        name: getattr(options, name) for name in ("depth", "budget", "max_new_tokens")
    }
    # Rules read what they were trained on, see `PolicyConfig`.
    scale = {"score_scale": RecorderConfig.score_scale}
    made_with = settings | scale | describe_inputs(params, drafter, prompts)
    if path.is_file():
        return load_labels(path, made_with)
    labels = collect(params, drafter, [prompt.content for prompt in prompts], **settings)
    save_labels(labels, path, made_with)
    return labels


def describe_inputs(
    params: Params, drafter: str, prompts: Sequence[LabelledPrompt]
) -> dict[str, str]:
    """Describe weights and prompts by content: greedy answers depend on them and the settings."""
    contents = json.dumps([prompt.content for prompt in prompts]).encode()
    return {
        "target": about(params, drafter, {})["target"],
        "drafter": f"{drafter} {fingerprint(params.drafter(drafter))}",
        "dtype": str(params.dtype),
        "prompts": f"{len(prompts)}, {fingerprint(np.frombuffer(contents, np.uint8))}",
    }


if __name__ == "__main__":
    with one_line_errors():
        print(json.dumps(train_classifier(tyro.cli(HeadOptions))[1], indent=1))
