"""Record a drafter's rounds at every position of greedy texts, for the replay environment.

    python -m jaxspec.training.rl.record --drafter eagle3 --prompts corpus.jsonl.gz --out eagle3.npz

Recording runs the decode loop's own functions and commits one token per round. What any depth and
size would have committed follows from the pool and the text. A dynamic tree is recorded at full
depth, trees of other builders at full size. `--preset ltd-paper` records the published sizes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from tqdm import tqdm

from jaxspec.call.options import group_options
from jaxspec.call.session import matmul_precision, prepare, run_prefill
from jaxspec.core.tree import root_only
from jaxspec.round.commit import absorb, commit
from jaxspec.round.context import make_round
from jaxspec.round.draft import draft
from jaxspec.round.grow import grow, show_tree
from jaxspec.round.plan import make_plan
from jaxspec.round.quick_jit import quick_jit
from jaxspec.round.stop_rule import show_pool
from jaxspec.round.verify import verify

from ..policies.options import encode_prompts
from ..replay.committed import committed_of_pool, committed_of_tree
from ..replay.figures import find_figures
from ..replay.records import Record, save_record
from ..run.command import one_line_errors, parse_with_preset
from .options import TextOptions, builder_of, decode_options, sees_pool, static_policy
from .presets import ROUNDS

# Positions recorded by one device call.
CHUNK = 32


@dataclasses.dataclass(kw_only=True)
class RecordOptions(TextOptions):
    """Options of a recording.

    Attributes:
      out: .npz file to write.
    """

    out: Path


@quick_jit(static_argnames=("config", "pool", "rounds"), donate_argnames=("state",))
def trace(params, request, state, *, config, pool: bool, rounds: int):
    """Run `rounds` rounds that commit one token each.

    Args:
      params, request, state, config: of the session.
      pool: return the pools of dynamic trees; otherwise the trees.
      rounds: number of rounds.

    Returns:
      (state, drafted `Pool` or `Tree` [rounds, B, ...], the scores of its nodes at the policy's
      scale [rounds, B, ...], figures of `find_figures` [rounds, B, ...], cached tokens int32
      [rounds, B]).
    """
    round = make_round(params, request, config)
    width, steps = round.growth.candidates, round.plan.steps

    def step(state, _):
        drafted, figures = draft(round, state, None), {}
        if pool:
            seen, shown = drafted.pool, show_pool(drafted.pool, drafted.scores)
        else:
            seen = grow(round, state, drafted)
            shown = show_tree(round.growth, drafted, seen)
        if drafted.sources is not None:
            find = functools.partial(find_figures, width=width, steps=steps)
            figures = jax.vmap(find)(seen.logprob, shown.logprob, drafted.sources)
        tree = root_only(state.root, round.plan.widths[-1])
        verified = verify(round, state, tree, None)
        after, committed = commit(round, state, tree, verified)
        told = seen, shown.logprob, figures, state.cache.length
        return absorb(round, after, committed), told

    state, told = jax.lax.scan(step, state, None, length=rounds)
    return state, *told


def record_texts(
    params, prompts: Sequence[list[int]], options: TextOptions
) -> dict[str, np.ndarray]:
    """Record one batch of prompts, given as token ids.

    Returns:
      The arrays of `Record` by name, with `prompt` numbered within the batch, and `seen`, the pools
      or trees.
    """
    session = _session(params, prompts, options)
    plan, pool = make_plan(params.spec, session.config), sees_pool(params, options)
    parts = []
    with matmul_precision(session):
        state = run_prefill(session)
        # Run at least once, so that there are arrays (of no positions) even if all texts end with
        # their first token.
        while not parts or not bool(np.asarray(state.done).all()):
            state, *told = trace(
                params, session.request, state, config=session.config, pool=pool, rounds=CHUNK
            )
            parts.append(jax.device_get(told))
    texts = [np.asarray(state.tokens[b])[: int(state.emitted[b])] for b in range(len(prompts))]
    # From [rounds, B, ...] to [B, rounds, ...].
    told = jax.tree.map(lambda *x: np.concatenate(x).swapaxes(0, 1), *parts)
    longest, width = plan.longest - 1, options.width if pool else 0
    sizes, parts = tuple(options.sizes), []
    for b, text in enumerate(texts):
        own = _positions(*jax.tree.map(lambda x, b=b: x[b], told), text, longest, width, sizes)
        parts.append(own | {"prompt": np.full(len(text) - 1, b, np.int32)})
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def _session(params, prompts, options: TextOptions):
    policy, settings = static_policy(options), decode_options(params, options)
    return prepare(
        params,
        list(prompts),
        max_new_tokens=options.max_new_tokens,
        **group_options(policy=policy, **settings),
    )


def _positions(
    seen, scores, figures, context, text, longest: int, width: int, sizes: tuple[int, ...]
) -> dict:
    """Make the arrays of one text's positions. Every token but the last is a root.

    `width` 0 means that `seen` holds trees, not pools.
    """
    count = len(text) - 1
    seen, scores, figures, context = jax.tree.map(
        lambda x: x[:count], (seen, scores, figures, context)
    )
    ahead = np.concatenate([text, np.full(longest, -1, text.dtype)])
    following = np.lib.stride_tricks.sliding_window_view(ahead, longest)[1 : count + 1]
    remaining = count - np.arange(count, dtype=np.int32)
    committed = np.minimum(_tables(seen, following, width, sizes), remaining[:, None, None])
    own = seen.logprob if width else seen.logprob[:, 1:]
    return {
        "scores": (scores if width else scores[:, 1:]).astype(np.float16),
        "order": np.argsort(-own, axis=1, kind="stable").astype(np.int16),
        "committed": committed.astype(np.int8),
        "context": context,
        "remaining": remaining,
        "seen": seen,
        **{name: x.astype(np.float16) for name, x in figures.items()},
    }


def _tables(seen, following: np.ndarray, width: int, sizes: tuple[int, ...]) -> np.ndarray:
    """Compute the committed tokens int32 [N, S, V].

    Positions are padded to whole chunks, so that texts of all lengths share a compilation.
    """
    count = len(following)
    missing = max(-(-count // CHUNK), 1) * CHUNK - count
    seen, following = jax.tree.map(
        lambda x: np.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)), (seen, following)
    )
    parts = [
        np.asarray(
            _table(
                jax.tree.map(lambda x, at=at: x[at : at + CHUNK], seen),
                following[at : at + CHUNK],
                width,
                sizes,
            )
        )
        for at in range(0, count + missing, CHUNK)
    ]
    return np.concatenate(parts)[:count]


@functools.partial(jax.jit, static_argnums=(2, 3))
def _table(seen, following, width, sizes):
    if width:
        return jax.vmap(lambda pool, text: committed_of_pool(pool, text, width, sizes))(
            seen, following
        )
    return jax.vmap(lambda tree, text: committed_of_tree(tree, text, sizes))(seen, following)


def record(options: TextOptions) -> Record:
    """Record the rounds of all prompts.

    Raises:
      ValueError, FileNotFoundError: prompts or options are unusable.
    """
    if (
        not options.sizes
        or list(options.sizes) != sorted(set(options.sizes))
        or options.sizes[0] < 1
    ):
        raise ValueError(
            f"sizes are {list(options.sizes)}: give numbers of rows in ascending order, from 1"
        )
    params = options.load()
    if options.keeps and not sees_pool(params, options):
        raise ValueError(
            f"keeps is {list(options.keeps)}, which needs the pool of a dynamic tree: "
            "leave --keeps out, or give --drafter eagle3"
        )
    prompts = options.read(params)
    ids = encode_prompts(params, prompts)
    room = params.spec.target.max_positions - options.max_new_tokens
    chosen = sorted(
        (i for i in range(len(ids)) if len(ids[i]) <= room), key=lambda i: (len(ids[i]), i)
    )
    parts: dict[int, dict] = {}
    with tqdm(total=len(chosen), desc="record", unit="prompt") as progress:
        for start in range(0, len(chosen), options.batch):
            batch = chosen[start : start + options.batch]
            filled = batch + batch[:1] * (options.batch - len(batch))
            found = record_texts(params, [ids[i] for i in filled], options)
            for place, number in enumerate(batch):
                mine = found["prompt"] == place
                parts[number] = {name: x[mine] for name, x in found.items() if name != "seen"} | {
                    "prompt": np.full(mine.sum(), number)
                }
            progress.update(len(batch))
    numbers = [number for number in sorted(parts) if len(parts[number]["context"])]
    if not numbers:
        raise ValueError(
            f"no text of {options.prompts} has a round: give shorter prompts or more max_new_tokens"
        )
    arrays = {
        name: np.concatenate([parts[number][name] for number in numbers])
        for name in parts[numbers[0]]
    }
    arrays["prompt"] = arrays["prompt"].astype(np.int32)
    return Record(_header(params, options, [prompt.domain for prompt in prompts]), **arrays)


def _header(params, options: TextOptions, domains: list[str]) -> dict:
    pool = sees_pool(params, options)
    steps = make_plan(params.spec, _session(params, [[0]], options).config).steps if pool else 0
    return {
        "model": options.target,
        "drafter": options.drafter,
        "builder": builder_of(params, options).name,
        "sees": "pool" if pool else "tree",
        "width": options.width if pool else 0,
        "steps": steps,
        "block_size": options.block_size,
        "sizes": list(options.sizes),
        "dtype": str(params.dtype),
        "score_scale": options.score_scale,
        "max_new_tokens": options.max_new_tokens,
        "limit": options.limit,
        "chat": options.chat,
        "domains": domains,
    }


if __name__ == "__main__":
    with one_line_errors():
        chosen = parse_with_preset(RecordOptions, ROUNDS)
        made = record(chosen)
        save_record(made, chosen.out)
        print(f"{len(made.context)} positions of {len(made.first())} texts in {chosen.out}")
