"""The text report of `jaxspec bench peers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxspec.bench.peers.pytorch import PLAIN
from jaxspec.bench.report.table import Column, Table, fixed, interval, percent, show_agreement

_RACE = {
    "name": Column(""),
    "tokens_per_second": Column("tok/s", fixed(1)),
    "tokens_per_second_with_prefill": Column("with prefill", fixed(1)),
    "spread": Column("spread", percent()),
    "speedup": Column("/ ar", fixed(2)),
    "against_plain": Column(f"/ {PLAIN}", fixed(2)),
    "against_plain_iqr": Column(
        "[quartiles]", lambda bounds: "-" if bounds is None else interval()(bounds)
    ),
    "differing_prompts": Column("= ar", show_agreement),
}
_OVERHEAD = {
    "round": Column("ms/round", fixed(2)),
    "target_forward": Column("target", fixed(2)),
    "draft_forward": Column("drafter", fixed(2)),
    "absorb": Column("absorb", fixed(2)),
    "overhead": Column("beyond them", percent()),
}


def render_peers(results: Sequence[dict[str, Any]], overheads: dict[str, dict[str, float]]) -> str:
    """Render two tables: the race, and the overhead of our rounds beyond their forwards.

    Args:
      results: result of `race_peers`.
      overheads: result of `measure_overhead`.
    """
    race = Table(list(_RACE.values()), [[one[key] for key in _RACE] for one in results])
    rows = [[name, *(found[key] for key in _OVERHEAD)] for name, found in overheads.items()]
    rounds = Table([Column(""), *_OVERHEAD.values()], rows)
    return f"{race.to_text()}\n\n{rounds.to_text()}"
