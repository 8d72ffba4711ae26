"""A drafter of your own: a table that says which token tends to follow which."""

import dataclasses

import jax.numpy as jnp

from jaxspec.drafters import Drafter, DrafterConfig, DrafterRecord, Proposal, simple_format
from jaxspec.io.weights.weight_map import Leaf


@dataclasses.dataclass(frozen=True, kw_only=True)
class BigramConfig(DrafterConfig):
    depth: int = 4


def make_bigram(config: BigramConfig) -> Drafter:
    def init(batch, capacity, dtype):
        return ()  # nothing is kept between rounds

    def absorb(params, state, target, committed):
        return state

    def start(params, state, target, root, rows):
        token, logits = root, []  # int32 [B]; one [B, V] for every depth
        for _ in range(config.depth):
            logits.append(params["params"]["table"][token])
            token = logits[-1].argmax(-1)
        return Proposal(jnp.stack(logits, axis=1)[:, None]), None

    return Drafter((), config.depth, config.depth, init, absorb, start)


def leaves(config: BigramConfig) -> list[Leaf]:
    return [Leaf(("table",), (("table",),), ((config.vocab_size, config.vocab_size),))]


BIGRAM = DrafterRecord(
    name="bigram",
    config=BigramConfig,
    make=make_bigram,
    compared=("chain", "best_first"),
    files=simple_format("BigramDrafter", BigramConfig, leaves),
)
