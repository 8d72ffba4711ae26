"""Grid search on the machine itself: decode validation prompts with every constant depth and number
of rows.

    python -m training.policies.grid_search --prompts validation.jsonl --out policies/static --steps
    2 4 6 --rows 8 16 32

Learning to Draft's strongest plain baseline. One compilation serves all constants; they take turns
on every prompt, in an order that is turned round every other time. `training.rl.replay.best_static`
does the same on recorded rounds and modelled times.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
from tqdm import tqdm

import jaxspec
from jaxspec.bench.calibrate import about
from jaxspec.bench.measure.prompt_files import read_prompts
from jaxspec.core.params import Params
from jaxspec.io.tokenizer import load_tokenizer
from jaxspec.policies.baselines.static import make_static
from jaxspec.policies.protocol import Policy
from jaxspec.policies.store import save_policy
from training.command import one_line_errors


@dataclasses.dataclass
class GridOptions:
    """Options of the search.

    Attributes:
      prompts: JSON Lines of validation prompts, see `jaxspec.bench.measure.prompt_files.read_prompts`. out:
        folder of the policy.
      target: `mini`, a directory or a hub id. drafter: one that ships with it, a directory or a hub
        id.
      builder: of the trees, as in `dynamic/w6`; None takes what suits the drafter.
      steps: draft steps after the root's to try; none for drafters of one step. rows: verified rows
        to try, the root included.
      limit: prompts of each domain. chat: they are users' chat messages. max_new_tokens: of each
        answer.
      repeats: timed answers of every pair. temperature: of the answers.
      dtype: of target and drafter; None picks what suits the device.
    """

    prompts: Path
    out: Path
    target: str = "mini"
    drafter: str = "eagle3"
    builder: str | None = None
    steps: tuple[int, ...] = (2, 4, 6, 8)
    rows: tuple[int, ...] = (8, 16, 32, 60)
    limit: int | None = 8
    chat: bool = False
    max_new_tokens: int = 128
    repeats: int = 3
    temperature: float = 0.0
    dtype: str | None = None


def measure_grid(
    params: Params,
    method: str,
    prompts: list,
    pairs: list[tuple[int | None, int]],
    repeats: int,
    **options,
):
    """(tokens, rounds, seconds) float64 [pairs] of all prompts and repeats with each constant pair
    (steps, rows).

    Args:
      prompts: as `jaxspec.decode` takes them, one at a time. options: of it.
    """
    widths = (1, *sorted({rows for _, rows in pairs} - {1}))
    policies = [make_static(*pair, widths) for pair in pairs]
    found = np.zeros((3, len(pairs)))
    for repeat in tqdm(range(-1, repeats), desc="grid", unit="repeat"):
        for prompt in prompts:
            order = range(len(pairs)) if repeat % 2 else range(len(pairs) - 1, -1, -1)
            for i in order:
                stats = jaxspec.decode(
                    params, prompt, method=method, policy=policies[i], **options
                ).stats
                if repeat >= 0:  # the first turn compiles
                    found[:, i] += stats.emitted - 1, stats.rounds, stats.decode_seconds
    return found


def search_grid(options: GridOptions) -> tuple[Policy, dict]:
    """Measure every pair and save the fastest; returns it and the table.

    Raises:
      ValueError, OSError: unusable prompts or options.
    """
    params = jaxspec.load(options.target, drafter=options.drafter, dtype=options.dtype)
    method = params.spec.drafters[0][0]
    tokenizer = load_tokenizer(params.spec.tokenizer) if params.spec.tokenizer else None
    prompts = [
        prompt.content
        for prompt in read_prompts(
            options.prompts, tokenizer, limit=options.limit, chat=options.chat
        )
    ]
    pairs = [(steps, rows) for steps in options.steps or (None,) for rows in options.rows]
    settings = {
        "builder": options.builder,
        "budget": max(options.rows),
    }
    settings |= {"depth": max(options.steps) + 1} if options.steps else {}
    settings |= {"max_new_tokens": options.max_new_tokens, "temperature": options.temperature}
    tokens, rounds, seconds = measure_grid(
        params, method, prompts, pairs, options.repeats, **settings
    )
    speed, best = tokens / seconds, int(np.argmax(tokens / seconds))
    policy = make_static(*pairs[best], (1, *sorted(set(options.rows) - {1})))
    save_policy(
        policy,
        options.out,
        about(params, method, {"builder": options.builder}) | {"model": options.target},
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
    import tyro

    with one_line_errors():
        print(json.dumps(search_grid(tyro.cli(GridOptions))[1], indent=1))
