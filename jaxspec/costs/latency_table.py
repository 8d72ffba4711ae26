"""What a round takes, by the rows that it verifies and the context that it reads: a table that was
measured on this machine.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.config import TargetConfig
from jaxspec.costs.calibration import Fit
from jaxspec.costs.roofline import Device, paper_bytes, paper_flops


@flax.struct.dataclass
class LatencyTable:
    """Seconds of a round's two parts; W compiled widths, C context lengths, both ascending.

    Attributes:
      widths: rows that verification is compiled for, the first is 1 (static). A tree of n rows is
        charged the smallest that holds it.
      contexts: float32 [C], cached tokens.
      draft: float32 [C], drafting, building the tree and absorbing what was committed.
      verify: float32 [W, C], the target's pass, acceptance and commit; verify[0] is a whole round
        of plain decoding.
    """

    widths: tuple[int, ...] = flax.struct.field(pytree_node=False)
    contexts: jax.Array
    draft: jax.Array
    verify: jax.Array

    def at(self, context: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(draft float32 [], verify float32 [W]) at `context` int32 [], linear between the measured
        ones and flat beyond.
        """
        context = context.astype(jnp.float32)
        if len(self.contexts) == 1:
            return self.draft[0], self.verify[:, 0]
        # Counted, for a search is a loop that the host drives: it would cut a round's command
        # buffer in two.
        cell = jnp.clip(jnp.sum(self.contexts < context) - 1, 0, len(self.contexts) - 2)
        low, high = self.contexts[cell], self.contexts[cell + 1]
        part = jnp.clip((context - low) / (high - low), 0.0, 1.0)
        draft = (1 - part) * self.draft[cell] + part * self.draft[cell + 1]
        return draft, (1 - part) * self.verify[:, cell] + part * self.verify[:, cell + 1]


def bucket_of(rows: int, widths: tuple[int, ...]) -> np.ndarray:
    """For trees of 1..rows rows, the index of the smallest width that holds them: int32 [rows]; the
    last where none does.
    """
    return np.minimum(np.searchsorted(widths, np.arange(1, rows + 1)), len(widths) - 1).astype(
        np.int32
    )


def make_table(widths, contexts, draft, verify) -> LatencyTable:
    """A checked table of numbers or arrays.

    Raises:
      ValueError: widths or contexts out of order, a wrong shape, or a time that is not a positive
        number (`draft` may be 0).
    """
    widths = tuple(int(width) for width in widths)
    contexts, draft, verify = (np.asarray(x, np.float32) for x in (contexts, draft, verify))
    if (
        not widths
        or widths[0] != 1
        or any(b <= a for a, b in zip(widths, widths[1:], strict=False))
    ):
        raise ValueError(
            f"widths are {list(widths)}: give compiled widths in ascending order, the first 1"
        )
    if contexts.ndim != 1 or not contexts.size or np.any(np.diff(contexts) <= 0):
        raise ValueError(
            f"contexts are {contexts.tolist()}: give context lengths in ascending order"
        )
    if draft.shape != contexts.shape or verify.shape != (len(widths), len(contexts)):
        raise ValueError(
            f"times have shapes {draft.shape} and {verify.shape}: with {len(widths)} widths and {len(contexts)} contexts they "
            f"must be {contexts.shape} and {(len(widths), len(contexts))}"
        )
    if not (
        np.all(np.isfinite(draft))
        and np.all(draft >= 0)
        and np.all(np.isfinite(verify))
        and np.all(verify > 0)
    ):
        raise ValueError("a time is not a positive number of seconds: measure again")
    return LatencyTable(widths, *map(jnp.asarray, (contexts, draft, verify)))


def save_table(table: LatencyTable, path: str | os.PathLike, about: dict | None = None) -> None:
    """Write a table as JSON, with `about` (device, model, versions) beside it."""
    arrays = {
        name: np.asarray(getattr(table, name), np.float64).tolist()
        for name in ("contexts", "draft", "verify")
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(
        json.dumps({"about": about or {}, "widths": table.widths, **arrays}, indent=1) + "\n"
    )


def load_table(path: str | os.PathLike) -> LatencyTable:
    """Read a table of `save_table`.

    Raises:
      FileNotFoundError: no such file.
      ValueError: the file is no such table.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        return make_table(
            content["widths"], content["contexts"], content["draft"], content["verify"]
        )
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} is no table of round times ({error!r}): make one with `jaxspec calibrate`"
        ) from None


def roofline_table(
    config: TargetConfig,
    device: Device,
    widths,
    contexts,
    *,
    draft=0.0,
    itemsize: int = 2,
    fit: Fit | None = None,
) -> LatencyTable:
    """The times that a device's peak rates allow for, as BASTION counts them, in place of measured
    ones.

    Args:
      widths, contexts: of the table. draft: seconds of drafting, a number or one for each context.
        itemsize: bytes of a weight.
      fit: of measured times to those of the roofline, see `calibration.fit` (None: the bare
        roofline).
    """
    new, cached = np.array(widths)[:, None], np.array(contexts)[None]
    compute = np.asarray(paper_flops(config, new, cached)) / device.flops
    memory = np.asarray(paper_bytes(config, new, cached, itemsize)) / device.bandwidth
    return make_table(
        widths,
        contexts,
        np.broadcast_to(draft, len(contexts)),
        (fit or Fit()).seconds(compute, memory),
    )
