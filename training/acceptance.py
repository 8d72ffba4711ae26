"""Acceptance length of a drafter's chain, simulated on a target's own greedy rollouts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.config import BlockDrafterConfig, TargetConfig
from jaxspec.targets.transformer import Transformer
from training.block_forward import block_hidden
from training.rollout_data import Rollouts


def simulate_rounds(matches: np.ndarray, first: int, end: int) -> list[int]:
    """Tokens committed by each round of greedy chain decoding of one sequence, bonus included.

    Args:
      matches: int [S], drafted tokens that agree with the text after an anchor at each position.
      first: position of the first anchor.
      end: one past the text's last token; nothing beyond it counts.
    """
    rounds, position = [], first
    while position < end - 1:
        rounds.append(min(int(matches[position]) + 1, end - 1 - position))
        position += rounds[-1]
    return rounds


def chain_acceptance(config: BlockDrafterConfig, target_config: TargetConfig, target, rollouts: Rollouts, limit: int = 16):
    """`evaluate(params) -> {"tau_<domain>": mean tokens a round, bonus included}` over greedy rollouts.

    Args:
      target: frozen variables of `Transformer`.
      rollouts: sequences that were not trained on; only those at temperature 0 are used.
      limit: sequences of each domain.
    """
    model, embedding = Transformer(target_config), target["params"]["embedding"]

    @jax.jit
    def count_matches(params, tokens, features):
        anchors = jnp.arange(features.shape[1])[None]
        hidden = block_hidden(config, params, embedding, tokens[:, :-1], features.astype(jnp.float32), anchors)
        drafts = model.apply(target, hidden[:, :, 1:], method="logits").argmax(-1)
        after = jnp.minimum(anchors[..., None] + 1 + jnp.arange(config.depth), tokens.shape[1] - 1)
        return jnp.cumprod(drafts == tokens[0][after], axis=-1).sum(-1)[0]

    def evaluate(params):
        result = {}
        every = rollouts.take(np.arange(rollouts.rows))
        for number, domain in enumerate(rollouts.meta["domains"]):
            rows = np.flatnonzero((every["domain"] == number) & (every["temperature"] == 0))[:limit]
            rounds = []
            for row in rows:
                tokens, features = every["tokens"][row : row + 1].astype(np.int32), every["features"][row : row + 1]
                matches = np.asarray(count_matches(params, tokens, features))
                rounds += simulate_rounds(matches, int(every["prompt"][row]), int(every["end"][row]))
            result[f"tau_{domain}"] = float(np.mean(rounds)) if rounds else float("nan")
        return result

    return evaluate
