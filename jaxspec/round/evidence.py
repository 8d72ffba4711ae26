"""Evidence of rounds: what the target computed for the tokens that they committed.

A drafter can be trained on it later, see `jaxspec.adapt`: the features that it reads, and the
hidden states that give the target's distribution of the next token. Rows are gathered on the
device, inside the loop, into rings that hold the newest `DecodeConfig.evidence` rows of a sequence.
With 0 rows nothing is gathered.
"""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.core.columns import write_columns
from jaxspec.core.config import TargetConfig
from jaxspec.core.state import Accepted, Tree
from jaxspec.round.context import Round
from jaxspec.round.sizes import prompt_chunk


class Evidence(flax.struct.PyTreeNode):
    """Rings of C rows, which hold at least the newest R of a sequence, see `kept`.

    The tokens of a round follow its root, which is at absolute position p, from row p % T on; those
    of a chunk of the prompt follow the chunk's first token in the same way. So each of both is
    written in one piece. Rows from T on are those of pieces that begin right before T.

    Attributes:
      features: [B, C, F], target features that the drafter reads.
      hidden: [B, C, E], the target's hidden states after the final norm; the row of the token at p
        gives the distribution of the token at p + 1.
      rejected: bool [B, M], whether a round's path ended because none of the children that were
        drafted there was accepted; M as in `DecodeState.round_emitted`.
      turn: T, the row at which a ring begins again.
    """

    features: jax.Array
    hidden: jax.Array
    rejected: jax.Array
    turn: int = flax.struct.field(pytree_node=False)

    @property
    def kept(self) -> int:
        """Return R. A piece has C - T rows at most, and spoils as many of the oldest ones."""
        return 2 * self.turn - self.features.shape[1]


def init_evidence(round: Round, batch: int, rounds: int) -> Evidence | None:
    """Make empty rings, or None if the call gathers no evidence.

    Args:
      rounds: M, the most rounds of a sequence.
    """
    rows, layers = round.config.evidence, len(round.feature_layers)
    if not rows:
        return None
    params, longest = round.params, round.plan.longest
    rings = make_evidence(params.spec.target, layers, rows, longest, batch, params.dtype)
    return rings.replace(rejected=jnp.zeros((batch, rounds), bool))


def make_evidence(
    target: TargetConfig, layers: int, rows: int, longest: int, batch: int, dtype: Any
) -> Evidence:
    """Make empty rings, of no rounds.

    Args:
      layers: of the target that the drafter reads. rows: R.
      longest: most rows that a round writes.
    """
    hidden, spare = target.hidden_size, max(longest, prompt_chunk())
    turn = rows + spare
    return Evidence(
        jnp.zeros((batch, turn + spare, layers * hidden), dtype),
        jnp.zeros((batch, turn + spare, hidden), dtype),
        jnp.zeros((batch, 0), bool),
        turn,
    )


def append_rows(
    evidence: Evidence, features: jax.Array, hidden: jax.Array, position: jax.Array
) -> Evidence:
    """Write a round or a chunk of the prompt. The next one overwrites rows behind its last token.

    Args:
      features, hidden: [B, K, F] and [B, K, E].
      position: int32 [B], absolute position of the first token.
    """
    start = position % evidence.turn
    return evidence.replace(
        features=write_columns(evidence.features, features.astype(evidence.features.dtype), start),
        hidden=write_columns(evidence.hidden, hidden.astype(evidence.hidden.dtype), start),
    )


def find_rejections(tree: Tree, accepted: Accepted, emit: jax.Array) -> jax.Array:
    """Find the sequences whose path ended in a rejection, bool [B].

    The last accepted node has children, and all tokens of the path were emitted, so the token after
    it is the one that the target preferred to all of these children.

    Args:
      emit: int32 [B], tokens that the round emitted.
    """
    last = jnp.take_along_axis(accepted.path, jnp.maximum(accepted.count - 1, 0)[:, None], axis=1)
    row = jnp.arange(tree.token.shape[1])
    child = (tree.parent == last) & (row > 0) & (row < tree.size[:, None])
    return child.any(1) & (emit > 0) & (emit == accepted.count)
