"""Train a block drafter (DFlash, or JetSpec's causal head) on a target's rollouts.

    python -m training.train_drafter --kind jetspec --model jaxspec/zoo/mini --rollouts runs/rollouts \\
        --loop.run runs/jetspec --loop.steps 500 --out jaxspec/zoo/mini/drafters/jetspec

Run the same command again to continue a run that was stopped. The target is frozen; its features and hidden states come from
the rollouts.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp

from jaxspec.cache import filled
from jaxspec.config import BlockDrafterConfig, TargetConfig
from jaxspec.drafters.block import BlockDrafter
from jaxspec.targets.transformer import Transformer
from training.acceptance import chain_acceptance
from training.block_forward import block_hidden
from training.data import load_tokenizer
from training.export import export_drafter, load_target
from training.loop import LoopOptions, fit
from training.losses import cross_entropy, forward_kl, reverse_kl, slot_weights
from training.optimizer import OptimizerOptions, make_optimizer, zero_residual
from training.rollout_data import AnchorBatches, Rollouts
from training.tokenizer import MASK


@dataclasses.dataclass
class DrafterOptions:
    """Options of the drafter recipe.

    Attributes:
      kind: `dflash` (slots see the whole block) or `jetspec` (slot i sees slots 0..i).
      model: folder of the exported target.
      rollouts: folder of `training.rollouts`.
      out: folder for config.json and model.safetensors.
      loop: see `training.loop.LoopOptions`.
      rows, anchors: sequences in a batch, and blocks of each.
      heldout_shards: the first shards, kept for the acceptance length and never trained on.
      block_size: slots of a block, the anchor included.
      score_temperature: how decoding scores paths, see `BlockDrafterConfig`; half of the rollouts are sampled, which leaves the
        drafter less sure of greedy text than it should be.
      num_layers: decoder layers; heads and widths are the target's.
      loss: `fkl` KL(target || drafter), `rkl` its reverse, `ce` cross-entropy on the target's own tokens.
      gamma: decay length of the slot weights in slots; 0 weights all alike.
      muon_rate, adam_rate, warmup, clip: see `training.optimizer.make_optimizer`.
      seed: of the initial weights, the order and the anchors.
    """

    kind: Literal["dflash", "jetspec"]
    model: Path
    rollouts: Path
    out: Path
    loop: LoopOptions
    rows: int = 32
    anchors: int = 24
    heldout_shards: int = 1
    block_size: int = 8
    score_temperature: float = 0.5
    num_layers: int = 2
    loss: Literal["fkl", "rkl", "ce"] = "fkl"
    gamma: float = 4.0
    muon_rate: float = 0.02
    adam_rate: float = 3e-3
    warmup: int = 20
    clip: float = 1.0
    seed: int = 0


def drafter_config(options: DrafterOptions, target: TargetConfig, feature_layers, mask_token: int) -> BlockDrafterConfig:
    """A drafter of the target's width and heads."""
    same = ("hidden_size", "num_heads", "num_kv_heads", "head_dim", "ffn_size", "rope_theta", "norm_eps")
    return BlockDrafterConfig(
        **{name: getattr(target, name) for name in same},
        num_layers=options.num_layers,
        block_size=options.block_size,
        mask_token_id=mask_token,
        feature_layers=tuple(feature_layers),
        causal=options.kind == "jetspec",
        target_hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        score_temperature=options.score_temperature,
    )


def init_drafter(config: BlockDrafterConfig, seed: int):
    """Parameters with residual projections at zero, as for the target."""

    def touch(drafter: BlockDrafter, features, block, positions):
        keys, values = drafter.context_kv(features, positions)
        return drafter(block, positions, filled(keys, values, jnp.ones(1, jnp.int32)))

    features = jnp.zeros((1, 2, len(config.feature_layers) * config.target_hidden_size))
    block, positions = jnp.zeros((1, 2, config.hidden_size)), jnp.zeros((1, 2), jnp.int32)
    params = jax.jit(lambda key: BlockDrafter(config).init(key, features, block, positions, method=touch))(jax.random.key(seed))
    return zero_residual(params)


def drafter_loss(config: BlockDrafterConfig, target_config: TargetConfig, target, *, kind: str, gamma: float):
    """`loss(params, _, batch) -> {"loss": (sum of weighted nats, sum of weights), "accuracy": (slots right, slots)}`.

    `batch` is what `training.rollout_data.make_batch` gives; `target` the frozen variables of `Transformer`.
    """
    model, embedding = Transformer(target_config), target["params"]["embedding"]

    def loss(params, _, batch):
        anchors, tokens = batch["anchors"], batch["tokens"]
        length = batch["features"].shape[1]
        features = batch["features"].astype(jnp.float32)
        hidden = block_hidden(config, params, embedding, tokens[:, :length], features, anchors)[:, :, 1:]
        logits = model.apply(target, hidden, method="logits")
        weights = slot_weights(anchors, batch["loss_mask"], config.block_size, gamma=gamma or None)[..., 1:]
        before = jnp.minimum(anchors[..., None] + jnp.arange(config.depth), length - 1)
        labels = jax.vmap(lambda row, index: row[index])(tokens, before + 1)
        if kind == "ce":
            values = cross_entropy(logits, labels)
        else:
            states = jax.vmap(lambda row, index: row[index])(batch["hidden"], before).astype(jnp.float32)
            teacher = model.apply(target, states, method="logits")
            values = (forward_kl if kind == "fkl" else reverse_kl)(logits, teacher)
        right, counted = (logits.argmax(-1) == labels) & (weights > 0), (weights > 0).astype(jnp.float32).sum()
        return {"loss": ((values * weights).sum(), weights.sum()), "accuracy": (right.astype(jnp.float32).sum(), counted)}

    return loss


def main(options: DrafterOptions) -> None:
    """Train, measure the acceptance length on held-out rollouts, export."""
    target, tokenizer = load_target(options.model), load_tokenizer(options.model)
    rollouts = Rollouts(options.rollouts, skip=options.heldout_shards)
    heldout = Rollouts(options.rollouts, limit=options.heldout_shards)
    spec = target.spec.target
    config = drafter_config(options, spec, rollouts.meta["feature_layers"], tokenizer.token_to_id(MASK))
    params = init_drafter(config, options.seed)
    loss = drafter_loss(config, spec, target.target, kind=options.loss, gamma=options.gamma)
    rates = OptimizerOptions("muon", options.adam_rate, options.muon_rate, options.warmup, options.clip)
    optimizer = make_optimizer(params, options.loop.steps, rates)
    recipe = {name: value for name, value in vars(options).items() if name not in ("loop", "model", "rollouts", "out")}
    recipe |= {"steps": options.loop.steps, "sequences": rollouts.rows, "feature_layers": config.feature_layers}
    batches = AnchorBatches(rollouts, options.rows, options.anchors, options.seed)
    evaluate = chain_acceptance(config, spec, target.target, heldout)
    export_drafter(fit(params, optimizer, loss, batches, options.loop, recipe, evaluate=evaluate), config, spec, options.out)


if __name__ == "__main__":
    import tyro

    main(tyro.cli(DrafterOptions))
