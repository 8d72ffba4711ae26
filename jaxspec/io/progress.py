"""The progress bar of a load, which readers of weights advance wherever they are called from."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

# Loads that are faster show no bar.
DELAY_SECONDS = 2.0
_bar: ContextVar[Any] = ContextVar("progress bar of a load", default=None)


@contextlib.contextmanager
def show_progress(shown: bool | None) -> Iterator[None]:
    """Show on stderr how many bytes have been read inside this `with` statement.

    Args:
      shown: None shows a bar on terminals, after `DELAY_SECONDS`; True always, at once; False
        never.
    """
    if shown is False or (shown is None and not sys.stderr.isatty()):
        yield
        return
    from tqdm import tqdm

    delay = 0.0 if shown else DELAY_SECONDS
    with tqdm(
        total=0, desc="load", unit="B", unit_scale=True, delay=delay, leave=False, file=sys.stderr
    ) as bar:
        token = _bar.set(bar)
        try:
            yield
        finally:
            _bar.reset(token)


def expect_bytes(count: int) -> None:
    """Add bytes that will be read to the bar's total, if a bar is shown."""
    bar = _bar.get()
    if bar is not None:
        bar.total += count
        bar.refresh()


def count_bytes(count: int) -> None:
    """Advance the bar by bytes that have been read, if a bar is shown."""
    bar = _bar.get()
    if bar is not None:
        bar.update(count)
