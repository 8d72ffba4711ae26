"""How the drafter of `own_drafter` is trained: its table learns which token follows in the text."""

import dataclasses

import jax
import jax.numpy as jnp
from own_drafter import BigramConfig

from jaxspec.training.drafters import DrafterPreset, TrainingRecord
from jaxspec.training.loss.terms import cross_entropy


@dataclasses.dataclass
class BigramOptions:
    smoothing: float = 0.0  # weight of a uniform distribution in what is learnt


def make_config(options, target, tokenizer):
    return BigramConfig(vocab_size=target.vocab_size, depth=options.depth or 4)


def init(config, seed, head):
    shape = (config.vocab_size, config.vocab_size)
    return {"params": {"table": 0.02 * jax.random.normal(jax.random.key(seed), shape)}}


def make_loss(config, target_config, options, own):
    def loss(params, target, batch):
        logits = params["params"]["table"][batch["tokens"][:, :-1]]  # [B, S - 1, V]
        values = (1 - own.smoothing) * cross_entropy(logits, batch["tokens"][:, 1:])
        values -= own.smoothing * jax.nn.log_softmax(logits).mean(-1)
        same = batch["segments"][:, 1:] == batch["segments"][:, :-1]
        weights = (same & batch["loss_mask"][:, 1:]).astype(jnp.float32)
        return {"loss": ((values * weights).sum(), weights.sum())}  # numerator, denominator

    return loss


BIGRAM_TRAINING = TrainingRecord(
    name="bigram",
    what="A table of which token follows which",
    config=make_config,
    init=init,
    loss=make_loss,
    options=BigramOptions,
    presets={
        "bigram": DrafterPreset(
            target="mini",
            model=dict(kind="bigram"),
            loss={},
            optimizer=dict(name="adamw", rate=0.1, warmup=1),
            loop=dict(steps=12, save_every=4, parts=1),
            length=32,
            batch=4,
            anchors=4,
        )
    },
)
