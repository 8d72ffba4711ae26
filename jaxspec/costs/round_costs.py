"""Round costs: one table of seconds by context, verified rows, draft steps and block size.

`jaxspec.tuner.calibrate.by_rows` and `jaxspec.tuner.calibrate.by_steps` measure it,
`jaxspec.costs.roofline.roofline_costs` computes it from a device's peak rates. Replays and reports
read it on the host with `RoundCosts.seconds`; policies read its `RoundCosts.by_rows` on the device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jaxspec.costs.row_costs import RowCosts
from jaxspec.io.fingerprint import fingerprint

# Draft steps of a round that decodes autoregressively, as `jaxspec.call.output.PerRound` has it.
AUTOREGRESSIVE = -1


@dataclasses.dataclass(frozen=True, eq=False)
class RoundCosts:
    """Seconds of rounds; W widths, K contexts, C block sizes, all ascending. `make_costs` checks.

    A round that drafts takes draft + steps * step + verify.

    Attributes:
      widths: rows whose costs are given. A tree costs what the smallest width that holds it costs.
        Measured tables give the widths that are compiled, a roofline every number of rows.
      contexts: float64 [K], cached tokens. Costs are linear between them and constant beyond.
      draft: float64 [K], drafting, building the tree and absorbing committed tokens; 0 if these
        were not measured separately from `verify`.
      verify: float64 [C, W, K], the rest of a round; C is 1 without `blocks`.
      plain: float64 [K], a round of autoregressive decoding.
      step: float64 [K], each draft step after the root's; None if steps are not distinguished.
      blocks: block sizes, the anchor included; () if sizes are not distinguished.
      about: describes the measurement (device, model, drafter and so on) by names and numbers, as
        JSON.
      compiled: rows that verification is compiled for, up to the last of `widths`.
    """

    widths: tuple[int, ...]
    contexts: np.ndarray
    draft: np.ndarray
    verify: np.ndarray
    plain: np.ndarray
    step: np.ndarray | None = None
    blocks: tuple[int, ...] = ()
    about: dict[str, Any] = dataclasses.field(default_factory=dict)
    compiled: tuple[int, ...] = ()

    @property
    def fingerprint(self) -> str:
        """A short hash of the numbers; a saved policy names the one that it was trained for."""
        compiled = () if self.compiled == self.widths else self.compiled
        sizes = np.array([*self.widths, *self.blocks, *compiled], np.float64)
        return fingerprint((sizes, self.contexts, self.draft, self.verify, self.plain, self.step))

    def seconds(
        self,
        context: ArrayLike,
        *,
        rows: ArrayLike | None = None,
        steps: ArrayLike | None = None,
        block: ArrayLike | None = None,
    ) -> np.ndarray:
        """Look up the seconds of rounds, float64.

        Arguments are numbers or integer arrays that broadcast.

        Args:
          context: cached tokens.
          rows: verified rows, the root included; None takes the largest width.
          steps: draft steps after the root's; -1 is a round of autoregressive decoding with any
            number of rows. None takes the steps that the table was measured with.
          block: block size, one of `blocks`.

        Raises:
          ValueError: more rows than the table reaches, an unknown block size, or an axis that was
            not measured.
        """
        context = np.asarray(context)
        width = self._width_index(self.widths[-1] if rows is None else rows)
        verify = self.verify[self._block_index(block), width]
        total = self._interpolate(self.draft, context) + self._interpolate(verify, context)
        if steps is None:
            return total
        steps = np.asarray(steps)
        drafted = np.any(steps > 0)
        if drafted and self.step is None:
            raise ValueError(
                "this table does not distinguish draft steps: measure one that does with "
                "`python -m jaxspec.training.rl.times`"
            )
        if drafted:
            total = self._interpolate(self.step, context) * steps + total
        plain = self._interpolate(self.plain, context)
        return np.where(steps == AUTOREGRESSIVE, plain, total)

    def split(
        self, context: ArrayLike, *, rows: ArrayLike, steps: ArrayLike
    ) -> tuple[np.ndarray, np.ndarray]:
        """Split the seconds of drafted rounds into (drafting, verification), float64 each.

        Drafting is all draft steps, and what a round of one row takes beyond an autoregressive one.
        The arguments are those of `seconds`; `steps` are at least 0.
        """
        context = np.asarray(context)
        total = self.seconds(context, rows=rows, steps=steps)
        one, plain = self.seconds(context, rows=1, steps=0), self._interpolate(self.plain, context)
        taken = 0.0 if self.step is None else self._interpolate(self.step, context) * steps
        drafting = np.minimum(np.maximum(one - plain, 0.0) + taken, total)
        return drafting, total - drafting

    def by_rows(self, steps: int = 0) -> RowCosts:
        """Return the costs by rows, for rounds with `steps` draft steps, as policies read them.

        Raises:
          ValueError: the table is by block size, or `steps` are given but not distinguished.
        """
        if self.blocks:
            raise ValueError("this table is by block size: give one that was measured by rows")
        if steps and self.step is None:
            raise ValueError(
                "this table does not distinguish draft steps: leave the number of steps out"
            )
        verify = self.verify[0]
        # The time of a round with one row beyond an autoregressive round is drafting.
        overhead = np.maximum(verify[0] - self.plain, 0.0)
        draft = self.draft + overhead + (0.0 if self.step is None else steps * self.step)
        arrays = (np.asarray(x, np.float32) for x in (self.contexts, draft, verify - overhead))
        return RowCosts(self.widths, *arrays)

    def _interpolate(self, values: np.ndarray, context: np.ndarray) -> np.ndarray:
        """Interpolate `values` [..., K] at `context` [...]; leading axes broadcast."""
        if len(self.contexts) == 1:
            return values[..., 0] + np.zeros(context.shape)
        at = np.clip(context, self.contexts[0], self.contexts[-1])
        low = np.clip(np.searchsorted(self.contexts, at) - 1, 0, len(self.contexts) - 2)
        part = (at - self.contexts[low]) / (self.contexts[low + 1] - self.contexts[low])
        values = np.broadcast_to(
            values, np.broadcast_shapes(values.shape[:-1], low.shape) + values.shape[-1:]
        )
        low, part = (
            np.broadcast_to(low, values.shape[:-1]),
            np.broadcast_to(part, values.shape[:-1]),
        )
        ends = np.take_along_axis(values, np.stack([low, low + 1], -1), -1)
        return ends[..., 0] + part * (ends[..., 1] - ends[..., 0])

    def _width_index(self, rows: ArrayLike) -> np.ndarray:
        if np.max(rows, initial=1) > self.widths[-1]:
            raise ValueError(
                f"round costs reach {self.widths[-1]} rows, not {np.max(rows)}: measure them with "
                "this budget"
            )
        return np.searchsorted(self.widths, rows)

    def _block_index(self, block: ArrayLike | None) -> np.ndarray:
        if block is None and self.blocks:
            raise ValueError(f"round costs are by block size: name one of {list(self.blocks)}")
        if block is None:
            return np.asarray(0)
        if not np.all(np.isin(block, self.blocks)):
            known = f"of {list(self.blocks)}" if self.blocks else "not by block size"
            raise ValueError(
                f"round costs are {known}, and block sizes {np.unique(block).tolist()} are asked "
                "for: measure them with these"
            )
        return np.searchsorted(self.blocks, block)


def make_costs(
    widths: Sequence[int],
    contexts: ArrayLike,
    draft: ArrayLike,
    verify: ArrayLike,
    *,
    plain: ArrayLike | None = None,
    step: ArrayLike | None = None,
    blocks: Sequence[int] = (),
    about: dict[str, Any] | None = None,
    compiled: Sequence[int] | None = None,
) -> RoundCosts:
    """Check and make a table; the other arguments are those of `RoundCosts`.

    Args:
      draft: [K], or one number for all contexts.
      verify: [C, W, K] with `blocks`, else [W, K].
      plain: [K]; None takes `verify` of one row, with which `widths` must begin.
      compiled: None: all of `widths`.

    Raises:
      ValueError: widths, contexts or blocks out of order, a wrong shape, or a time that is not a
        positive number (`draft` and `step` may be 0).
    """
    compiled = widths if compiled is None else compiled
    widths, blocks, compiled = (
        tuple(int(size) for size in sizes) for sizes in (widths, blocks, compiled)
    )
    contexts, verify = np.asarray(contexts, np.float64), np.asarray(verify, np.float64)
    _check_sizes(widths, contexts, blocks, plain is None)
    if not _ascend(compiled) or compiled[-1:] != widths[-1:]:
        raise ValueError(
            f"compiled widths are {list(compiled)}: give them in ascending order up to {widths[-1]}"
        )
    wanted = (*((len(blocks),) if blocks else ()), len(widths), len(contexts))
    if verify.shape != wanted:
        raise ValueError(
            f"verify has shape {verify.shape}: with these widths, contexts and blocks it must be "
            f"{wanted}"
        )
    verify = verify.reshape(-1, *wanted[-2:])
    parts = {"draft": draft, "plain": verify[0, 0] if plain is None else plain, "step": step}
    parts = {
        name: None if values is None else _spread(name, values, len(contexts))
        for name, values in parts.items()
    }
    if not all(_is_time(parts[name]) for name in ("draft", "step") if parts[name] is not None):
        raise ValueError("a time is not a number of seconds of at least 0: measure again")
    if not all(_is_time(times) and np.all(times > 0) for times in (verify, parts["plain"])):
        raise ValueError("a time is not a positive number of seconds: measure again")
    known = {"blocks": blocks, "about": dict(about or {}), "compiled": compiled}
    return RoundCosts(widths, contexts, verify=verify, **parts, **known)


def _check_sizes(
    widths: tuple[int, ...], contexts: np.ndarray, blocks: tuple[int, ...], begin_with_one: bool
) -> None:
    """Raise ValueError unless the axes of a table are in ascending order."""
    if not widths or not _ascend(widths) or (begin_with_one and widths[0] != 1):
        raise ValueError(
            f"widths are {list(widths)}: give compiled widths in ascending order, the first 1"
        )
    if contexts.ndim != 1 or not contexts.size or not _ascend(contexts):
        raise ValueError(
            f"contexts are {contexts.tolist()}: give context lengths in ascending order"
        )
    if not _ascend(blocks):
        raise ValueError(f"blocks are {list(blocks)}: give block sizes in ascending order")


def _spread(name: str, values: ArrayLike, count: int) -> np.ndarray:
    """Broadcast one number, or `count` numbers, to float64 [count]."""
    values = np.asarray(values, np.float64)
    if values.shape not in ((), (count,)):
        raise ValueError(f"{name} has shape {values.shape}: give one time for each context")
    return np.broadcast_to(values, count)


def _ascend(values: Sequence[float] | np.ndarray) -> bool:
    return all(low < high for low, high in zip(values, values[1:], strict=False))


def _is_time(values: np.ndarray) -> bool:
    return bool(np.all(np.isfinite(values)) and np.all(values >= 0))
