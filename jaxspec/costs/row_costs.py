"""Round costs by verified rows, as policies read them on the device."""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike


class RowCosts(flax.struct.PyTreeNode):
    """Seconds of a round's two parts by W numbers of rows and K context lengths, both ascending.

    `RoundCosts.by_rows` makes it from a table on the host.

    Attributes:
      widths: rows whose costs are given, see `RoundCosts`; the first is 1 (static). A tree of n
        rows costs what the smallest width that holds it costs.
      contexts: float32 [K], cached tokens.
      draft: float32 [K], drafting, building the tree and absorbing committed tokens.
      verify: float32 [W, K], the target's pass, acceptance and commit; verify[0] is a whole round
        of autoregressive decoding.
    """

    widths: tuple[int, ...] = flax.struct.field(pytree_node=False)
    contexts: jax.Array
    draft: jax.Array
    verify: jax.Array

    def rounds(self) -> np.ndarray:
        """Return whole rounds, float64 [W + 1, K]: autoregressive ones, then those of each width."""
        draft, verify = np.asarray(self.draft, np.float64), np.asarray(self.verify, np.float64)
        return np.concatenate([verify[:1], draft + verify])

    def with_rounds(self, rounds: np.ndarray) -> RowCosts:
        """Return costs of these whole rounds, see `rounds`; more rows never take less time."""
        draft, verify = split_rounds(rounds[0], rounds[1:])
        return self.replace(draft=np.float32(draft), verify=np.float32(verify))

    def interpolate(self, context: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Interpolate at `context` int32 []: linear between measured contexts, constant beyond.

        Returns:
          (draft float32 [], verify float32 [W]), seconds.
        """
        context = context.astype(jnp.float32)
        contexts, draft, verify = map(jnp.asarray, (self.contexts, self.draft, self.verify))
        if len(contexts) == 1:
            return draft[0], verify[:, 0]
        # Count instead of searching: a search is a loop driven by the host, which would cut the
        # round's command buffer in two.
        cell = jnp.clip(jnp.sum(contexts < context) - 1, 0, len(contexts) - 2)
        low, high = contexts[cell], contexts[cell + 1]
        part = jnp.clip((context - low) / (high - low), 0.0, 1.0)
        at_context = (1 - part) * draft[cell] + part * draft[cell + 1]
        return at_context, (1 - part) * verify[:, cell] + part * verify[:, cell + 1]


def width_indices(rows: int, widths: tuple[int, ...]) -> np.ndarray:
    """Find the index of the smallest width that holds each tree of 1 to `rows` rows.

    Returns:
      int32 [rows]; the last width's index for trees that no width holds.
    """
    found = np.searchsorted(widths, np.arange(1, rows + 1))
    return np.minimum(found, len(widths) - 1).astype(np.int32)


def split_rounds(plain: ArrayLike, drafted: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Split the seconds of rounds at K contexts, for `jaxspec.costs.round_costs.make_costs`.

    More rows never take less time. Where they seem to, it is noise, and a policy would follow it:
    such times are averaged (isotonic regression).

    Args:
      plain: [K], rounds of autoregressive decoding, which verify one row.
      drafted: [W, K], rounds that draft and verify each of W widths, the first of one row.

    Returns:
      float64 [K], drafting, and float64 [W, K], verification. Their sums are the rounds that draft,
      but for rounds of one row, which cost at least what a plain round does.
    """
    plain = np.asarray(plain, np.float64)
    rising = _make_rising(np.asarray(drafted, np.float64))
    draft = np.maximum(rising[0] - plain, 0.0)
    return draft, np.concatenate([plain[None], np.maximum(rising[1:] - draft, 1e-9)])


def _make_rising(drafted: np.ndarray) -> np.ndarray:
    if (np.diff(drafted, axis=0) >= 0).all():
        # Importing SciPy takes half a second of a first call.
        return drafted
    from scipy.optimize import isotonic_regression

    return np.stack([isotonic_regression(times).x for times in drafted.T], axis=1)
