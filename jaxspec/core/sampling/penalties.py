"""What earlier tokens do to logits: penalties of repetition, and end tokens that may not come yet.

In a tree they differ from row to row. The tokens before a row are those of the context and those of
its own path. All rows share the counts of the context [V]; what a path adds is written to the few
entries of its tokens.

B sequences, N tree rows, D path length, V vocabulary.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.sampling.settings import Penalties
from jaxspec.core.state import Tree
from jaxspec.core.tree import WORD

# A count is even: twice the number of times that a token was generated. The prompt's tokens have
# one more, because the repetition penalty asks for them, too, and the others do not.
_PROMPT, _GENERATED = 1, 2


def count_prompt(tokens: jax.Array, lengths: jax.Array, vocab: int) -> jax.Array:
    """Begin to count: return int32 [B, V].

    Args:
      tokens: int32 [B, S], prompts, padded on the right.
      lengths: int32 [B].
    """
    real = jnp.arange(tokens.shape[1]) < lengths[:, None]
    row = jnp.arange(tokens.shape[0])[:, None]
    counts = jnp.zeros((tokens.shape[0], vocab), jnp.int32)
    return counts.at[row, jnp.where(real, tokens, vocab)].max(_PROMPT, mode="drop")


def count_generated(counts: jax.Array, tokens: jax.Array, emitted: jax.Array) -> jax.Array:
    """Count the first `emitted` int32 [B] of generated tokens int32 [B, A]."""
    row = jnp.arange(tokens.shape[0])[:, None]
    real = jnp.arange(tokens.shape[1]) < emitted[:, None]
    token = jnp.where(real, tokens, counts.shape[1])
    return counts.at[row, token].add(_GENERATED, mode="drop")


def list_paths(tree: Tree, depth: int) -> jax.Array:
    """List the tokens on the path to each row, its own included and the root's not.

    Args:
      depth: D, static; deeper tokens are left out.

    Returns:
      int32 [B, N, D]; -1 where the path has ended.
    """
    rows = np.arange(tree.token.shape[1])
    seen = tree.ancestors[..., rows // WORD] >> (rows % WORD).astype(np.uint32) & 1
    levels = np.arange(1, depth + 1)[:, None]
    at = (seen[:, :, None] == 1) & (tree.depth[:, None, None] == levels)
    return jnp.where(at, tree.token[:, None, None], -1).max(-1, initial=-1)


def penalise(
    logits: jax.Array, counts: jax.Array, paths: jax.Array, penalties: Penalties
) -> jax.Array:
    """Apply the penalties of repetition, then frequency, then presence, as vLLM does.

    The first divides positive logits of tokens that the text or its prompt has, and multiplies
    negative ones (CTRL, arXiv 1909.05858; transformers). The others are OpenAI's: they subtract
    from the logits of generated tokens, once for each time, or once.

    Args:
      logits: float32 [..., V].
      counts: int32, broadcastable to [..., V], of the context.
      paths: int32 [..., D], tokens that follow the context; -1 is padding.
      penalties: arrays that are broadcastable to [...].

    Returns:
      float32 [..., V].
    """
    strengths = Penalties(*(jnp.expand_dims(x, -1) for x in penalties))
    common = _penalise(logits, counts, strengths)
    if not paths.shape[-1]:
        return common
    token, vocab = jnp.maximum(paths, 0), logits.shape[-1]
    times = (paths[..., :, None] == paths[..., None, :]).sum(-1, dtype=jnp.int32)
    known = jnp.take_along_axis(counts, token, axis=-1) + _GENERATED * times
    own = _penalise(jnp.take_along_axis(logits, token, axis=-1), known, strengths)
    # A token that is there twice is written twice, with the same value.
    return _write(common, jnp.where(paths < 0, vocab, paths), own)


def _penalise(logits: jax.Array, counts: jax.Array, strengths: Penalties) -> jax.Array:
    generated = counts // _GENERATED
    scaled = jnp.where(logits > 0, logits / strengths.repetition, logits * strengths.repetition)
    kept = jnp.where(counts > 0, scaled, logits)
    present = jnp.where(generated > 0, strengths.presence, 0.0)
    return kept - strengths.frequency * generated.astype(jnp.float32) - present


def forbid(logits: jax.Array, tokens: jax.Array, where: jax.Array) -> jax.Array:
    """Exclude tokens after some rows.

    Args:
      logits: float32 [..., V].
      tokens: int32, broadcastable to [..., E]; -1 is padding.
      where: bool [...].

    Returns:
      float32 [..., V].
    """
    index = jnp.where(where[..., None] & (tokens >= 0), tokens, logits.shape[-1])
    return _write(logits, index, jnp.full(index.shape, -jnp.inf))


def _write(logits: jax.Array, index: jax.Array, values: jax.Array) -> jax.Array:
    """Write values [..., K] to the entries int32 [..., K] of logits [..., V], none beyond V."""
    flat = logits.reshape(-1, logits.shape[-1])
    row = jnp.arange(flat.shape[0])[:, None]
    index, values = (x.reshape(flat.shape[0], -1) for x in (index, values))
    return flat.at[row, index].set(values, mode="drop").reshape(logits.shape)
