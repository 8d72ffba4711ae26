"""Search on the real device for the fastest constant depth and number of verified rows.

    python -m jaxspec.training.policies.grid_search --drafter eagle3 --prompts validation.jsonl \\
      --out policies/static --steps 2 4 6 --rows 8 16 32

This is Learning to Draft's strongest plain baseline; `--preset ltd-paper` is its grid. All constants
share one compilation. They take turns on every prompt, and the order is reversed in every other
repeat. `training.rl.replay.best_static` does the same on recorded rounds and modelled times.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
from tqdm import tqdm

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.core.params import Params
from jaxspec.policies.protocol import Policy
from jaxspec.policies.rules.static import make_static
from jaxspec.policies.store import save_policy
from jaxspec.tuner.calibrate.by_rows import about

from ..run.command import one_line_errors, parse_with_preset
from .options import PromptsToAnswer

# Learning to Draft's grid: depths of 4 to 12 and 40 to 240 drafted tokens; it does not say in which
# steps, so those of its policies are taken.
PRESETS = {
    "jaxspec": {},
    "ltd-paper": dict(
        builder="dynamic/w10", steps=(4, 6, 8, 10, 12), rows=tuple(range(41, 242, 20))
    ),
}


@dataclasses.dataclass(kw_only=True)
class GridOptions(PromptsToAnswer):
    """Options of the search.

    Attributes:
      out: folder of the policy.
      builder: of the trees, for example `dynamic/w6`; None takes the drafter's default.
      steps: numbers of draft steps after the root's to try; give none for drafters of one step.
      rows: numbers of verified rows to try, the root included.
      limit: prompts of each domain.
      repeats: timed answers per prompt and pair.
      temperature: of the answers.
    """

    out: Path
    builder: str | None = None
    steps: tuple[int, ...] = (2, 4, 6, 8)
    rows: tuple[int, ...] = (8, 16, 32, 60)
    limit: int | None = 8
    repeats: int = 3
    temperature: float = 0.0


def measure_grid(
    params: Params,
    drafter: str,
    prompts: list,
    pairs: list[tuple[int | None, int]],
    repeats: int,
    **options,
):
    """Decode all prompts with each constant pair (steps, rows).

    Args:
      params: target and drafter.
      drafter: its name.
      prompts: as `jaxspec.decode` takes them; decoded one at a time.
      pairs: of (draft steps or None, verified rows).
      repeats: timed answers per prompt and pair.
      options: of `jaxspec.decode`.

    Returns:
      (tokens, rounds, seconds), float64 [3, pairs], summed over prompts and repeats.
    """
    widths = (1, *sorted({rows for _, rows in pairs} - {1}))
    policies = [make_static(*pair, widths) for pair in pairs]
    found = np.zeros((3, len(pairs)))
    for repeat in tqdm(range(-1, repeats), desc="grid", unit="repeat"):
        for prompt in prompts:
            order = range(len(pairs)) if repeat % 2 else range(len(pairs) - 1, -1, -1)
            for i in order:
                stats = jaxspec.decode(
                    params, prompt, drafter=drafter, **group_options(policy=policies[i], **options)
                ).stats
                if repeat >= 0:  # the first repeat compiles and is not counted
                    found[:, i] += stats.emitted - 1, stats.rounds, stats.decode_seconds
    return found


def search_grid(options: GridOptions) -> tuple[Policy, dict]:
    """Measure every pair and save the fastest.

    Returns:
      (the policy, {"best": its figures, "all": figures of every pair}).

    Raises:
      ValueError, OSError: prompts or options are unusable.
    """
    params = options.load()
    drafter = params.spec.default_drafter
    prompts = [prompt.content for prompt in options.read(params)]
    pairs = [(steps, rows) for steps in options.steps or (None,) for rows in options.rows]
    settings = {
        "builder": options.builder,
        "budget": max(options.rows),
    }
    settings |= {"depth": max(options.steps) + 1} if options.steps else {}
    settings |= {"max_new_tokens": options.max_new_tokens, "temperature": options.temperature}
    tokens, rounds, seconds = measure_grid(
        params, drafter, prompts, pairs, options.repeats, **settings
    )
    speed, best = tokens / seconds, int(np.argmax(tokens / seconds))
    policy = make_static(*pairs[best], (1, *sorted(set(options.rows) - {1})))
    save_policy(
        policy,
        options.out,
        about(params, drafter, {"builder": options.builder}) | {"model": options.target},
    )
    rows = [
        {
            "steps": pair[0],
            "rows": pair[1],
            "tokens_per_second": float(speed[i]),
            "acceptance_length": float(tokens[i] / rounds[i]),
        }
        for i, pair in enumerate(pairs)
    ]
    return policy, {"best": rows[best], "all": rows}


if __name__ == "__main__":
    with one_line_errors():
        print(json.dumps(search_grid(parse_with_preset(GridOptions, PRESETS))[1], indent=1))
