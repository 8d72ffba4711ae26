"""What adaptive rules learn from: nodes of EAGLE's dynamic trees, with whether the target's text
went that way.

The rounds are those of `jaxspec.decode` itself. A policy that always drafts on hands every
observation to the host, and the greedy text that the call returns says which nodes are on its path,
in the verified tree or not. Nodes that reach beyond the end of a text, and agree with it so far,
are left out: nobody knows.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import jaxspec
from jaxspec.builders import dynamic
from jaxspec.core.params import Params
from jaxspec.policies.protocol import Acts, Functions, Observation, Policy, PolicyConfig, keep_state
from training.command import check_made_with

NEEDS = frozenset({"entropy", "top", "hidden"})
# The settings' name in a file of labels.
MADE_WITH = "made_with"


class Labels(NamedTuple):
    """Labelled nodes; n of those that would be drafted from next, m of those that had just been fed
    to the drafter.

    Attributes:
      prompt: int32 [n], number of the prompt. depth: int32 [n], from 1. logprob: float32 [n], of
        the path.
      entropy: float32 [n], nats, of the distribution that the node is from. top: float32 [n, 10],
        its largest probabilities.
      best: bool [n], no node of its level is likelier. accepted: bool [n], the text goes this way.
      fed_prompt: int32 [m]. hidden: float16 [m, E], the drafter's, after it was fed the node.
      fed_accepted: bool [m], the text goes this way; it does so up to the node's parent.
    """

    prompt: np.ndarray
    depth: np.ndarray
    logprob: np.ndarray
    entropy: np.ndarray
    top: np.ndarray
    best: np.ndarray
    accepted: np.ndarray
    fed_prompt: np.ndarray
    hidden: np.ndarray
    fed_accepted: np.ndarray


@dataclasses.dataclass(frozen=True)
class RecorderConfig(PolicyConfig):
    """Attributes: sink: called on the host with every observation of a step, in order; compared by
    identity.
    """

    sink: Callable[[Observation], None] | None = None

    def functions(self) -> Functions:
        return _functions(self)


@functools.lru_cache(maxsize=4)
def _functions(settings: RecorderConfig) -> Functions:
    def deeper(controls, state, seen):
        jax.experimental.io_callback(settings.sink, None, seen, ordered=True)
        return jnp.ones_like(seen.live)

    return Functions(lambda shape: (), Acts(deeper=deeper), keep_state, NEEDS)


def collect(
    params: Params,
    method: str,
    prompts: Sequence,
    *,
    batch: int = 8,
    width: int | None = None,
    **options,
) -> Labels:
    """Label the nodes of all rounds of greedy answers.

    Args:
      params: target with the drafter `method`, one that shows its hidden states.
      prompts: as `jaxspec.decode` takes them. batch: decoded together.
      width: of the dynamic trees. options: of `jaxspec.decode`: depth, budget, max_new_tokens and
        so on.

    Raises:
      ValueError: no node was labelled.
    """
    seen: list[Observation] = []
    policy = Policy(RecorderConfig(sink=seen.append), ())
    parts, chosen = [], list(prompts)
    for start in tqdm(range(0, len(chosen), batch), desc="label", unit="batch"):
        own = chosen[start : start + batch]
        # The last batch is filled up, so that it shares the others' compilation.
        filled = own + own[:1] * (min(batch, len(chosen)) - len(own))
        seen.clear()
        outputs = jaxspec.decode(
            params,
            filled,
            method=method,
            builder=dynamic(width),
            temperature=0.0,
            policy=policy,
            trace=True,
            **options,
        )
        jax.effects_barrier()
        rounds = _rounds(seen)
        for b, output in enumerate(outputs[: len(own)]):
            parts.extend(_label(rounds, b, start + b, output))
    if not parts:
        raise ValueError("no round was recorded: give longer answers or more prompts")
    labels = Labels(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    if not len(labels.depth) or not len(labels.fed_accepted):
        raise ValueError("no node was labelled: give longer answers or more prompts")
    return labels


def _rounds(seen: Iterable[Observation]) -> list[list[Observation]]:
    """Observations of each round of a batch, one a step."""
    rounds: list[list[Observation]] = []
    for one in seen:
        one = jax.tree.map(np.asarray, one)
        if one.steps == 0:
            rounds.append([])
        rounds[-1].append(one)
    return rounds


def _label(rounds: list[list[Observation]], b: int, prompt: int, output) -> Iterable[Labels]:
    """Labels of one sequence's steps."""
    start = 1  # the prefill's token is the first round's root
    for observations, done in zip(rounds, output.rounds, strict=False):
        for one in observations:
            yield _label_step(
                jax.tree.map(lambda x, b=b: x[b], one.replace(steps=None)),
                int(one.steps),
                prompt,
                output,
                start,
            )
        start += len(done.path)


def _label_step(seen: Observation, steps: int, prompt: int, output, start: int) -> Labels:
    text = np.asarray(output.tokens[start:])
    nodes = _frontier(seen, steps)
    paths = [_path(seen.pool, node) for node in nodes]
    verdicts = np.array([_goes_this_way(seen.pool.token[path], text) for path in paths], np.int8)
    parents = np.array(
        [_goes_this_way(seen.pool.token[path[:-1]], text) for path in paths], np.int8
    )
    grand = np.array([_goes_this_way(seen.pool.token[path[:-2]], text) for path in paths], np.int8)
    known = verdicts >= 0
    # A slot that several nodes are from was fed one node: their parent. Of the first level that is
    # the root.
    _, first = np.unique([path[-2] if len(path) > 1 else -1 for path in paths], return_index=True)
    fed = first[(parents[first] >= 0) & (grand[first] == 1)] if steps else first[:0]
    return Labels(
        np.full(known.sum(), prompt, np.int32),
        np.full(known.sum(), steps + 1, np.int32),
        seen.frontier[: len(nodes)][known],
        seen.entropy[: len(nodes)][known],
        seen.top[: len(nodes)][known],
        (np.arange(len(nodes)) == 0)[known],
        verdicts[known] == 1,
        np.full(len(fed), prompt, np.int32),
        seen.hidden[fed].astype(np.float16),
        parents[fed] == 1,
    )


def _frontier(seen: Observation, steps: int) -> np.ndarray:
    """Numbers in the pool of the nodes to be drafted from: the dynamic tree's, a level's likeliest,
    equals by number.
    """
    level = np.flatnonzero((seen.pool.depth == steps + 1) & (seen.pool.logprob > -np.inf))
    order = np.argsort(-seen.pool.logprob[level], kind="stable")
    return level[order][: int(np.sum(seen.frontier > -np.inf))]


def _path(pool, node: int) -> list[int]:
    """Numbers of the nodes from below the root to `node`."""
    path = []
    while node >= 0:
        path.append(int(node))
        node = pool.parent[node]
    return path[::-1]


def _goes_this_way(tokens: np.ndarray, text: np.ndarray) -> int:
    """1: the text goes on with these tokens; 0: it does not; -1: it ends before they do, and agrees
    so far.
    """
    count = min(len(tokens), len(text))
    if np.any(tokens[:count] != text[:count]):
        return 0
    return 1 if count == len(tokens) else -1


def save_labels(labels: Labels, path: Path, made_with: Mapping[str, Any] | None = None) -> None:
    """Write labels as .npz, with the settings that they depend on by name, as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez(file, **labels._asdict(), **{MADE_WITH: np.array(json.dumps(made_with or {}))})


def load_labels(path: Path, made_with: Mapping[str, Any] | None = None) -> Labels:
    """Read labels of `save_labels`.

    Args:
      made_with: the settings that they are to have been made with (None: any).

    Raises:
      ValueError: the file holds none, or those of other settings.
    """
    with np.load(path) as arrays:
        if set(arrays.files) != {*Labels._fields, MADE_WITH}:
            raise ValueError(
                f"{path} holds no labels, or does not say what of: delete it, and they are made anew"
            )
        if made_with is not None:
            check_made_with(path, json.loads(str(arrays[MADE_WITH])), made_with)
        return Labels(**{name: arrays[name] for name in Labels._fields})
