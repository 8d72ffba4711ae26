"""Label nodes of EAGLE's dynamic trees for adaptive rules: does the target's text follow the node?

The rounds are those of `jaxspec.decode`. A recording policy never stops drafting and sends every
observation to the host. The greedy text that the call returns tells which nodes are on its path,
whether or not they were in the verified tree. A node whose path agrees with the text but reaches
beyond its end has no label and is left out.
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
from jaxspec.call.options import group_options
from jaxspec.core.params import Params
from jaxspec.io.files.atomic import replacing
from jaxspec.policies.protocol import Acts, Functions, Observation, Policy, PolicyConfig, keep_state

from ..run.command import check_made_with

NEEDS = frozenset({"entropy", "top", "hidden"})
# Name of the settings in a file of labels.
MADE_WITH = "made_with"


class Labels(NamedTuple):
    """Labelled nodes: n nodes to be drafted from next, and m nodes just fed to the drafter.

    Attributes:
      prompt: int32 [n], number of the prompt.
      depth: int32 [n], from 1.
      logprob: float32 [n], log-probability of the path.
      entropy: float32 [n], nats, of the distribution that proposed the node.
      top: float32 [n, 10], the largest probabilities of that distribution.
      best: bool [n], whether the node is the likeliest of its level.
      accepted: bool [n], whether the text follows the path to the node.
      fed_prompt: int32 [m], number of the prompt.
      hidden: float16 [m, E], the drafter's hidden state after it was fed the node.
      fed_accepted: bool [m], whether the text follows the path to the node. It always follows the
        path to the node's parent.
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
    """A policy that drafts every step and records what it sees.

    Attributes:
      sink: called on the host with every step's observation, in order; compared by identity.
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
    drafter: str,
    prompts: Sequence,
    *,
    batch: int = 8,
    width: int | None = None,
    **options,
) -> Labels:
    """Label the nodes of all rounds of greedy answers.

    Args:
      params: target and drafter.
      drafter: name of one that shows its hidden states.
      prompts: as `jaxspec.decode` takes them.
      batch: prompts decoded together.
      width: of the dynamic trees.
      options: of `jaxspec.decode`: depth, budget, max_new_tokens and so on.

    Raises:
      ValueError: no node could be labelled.
    """
    seen: list[Observation] = []
    policy = Policy(RecorderConfig(sink=seen.append), ())
    parts, chosen = [], list(prompts)
    for start in tqdm(range(0, len(chosen), batch), desc="label", unit="batch"):
        own = chosen[start : start + batch]
        # Fill up the last batch, so that it shares the compilation of the others.
        filled = own + own[:1] * (min(batch, len(chosen)) - len(own))
        seen.clear()
        outputs = jaxspec.decode(
            params,
            filled,
            drafter=drafter,
            **group_options(builder=dynamic(width), policy=policy, **options),
            temperature=0.0,
            trace=True,
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
    """Group observations by round of the batch, one observation per step."""
    rounds: list[list[Observation]] = []
    for one in seen:
        one = jax.tree.map(np.asarray, one)
        if one.steps == 0:
            rounds.append([])
        rounds[-1].append(one)
    return rounds


def _label(rounds: list[list[Observation]], b: int, prompt: int, output) -> Iterable[Labels]:
    """Label the steps of sequence `b`."""
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
    # Siblings come from one slot, which was fed one node: their parent. For the first level that is
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
    """Return the pool indices of the nodes that a dynamic tree drafts from next.

    These are the level's likeliest nodes; among ties the smaller index comes first.
    """
    level = np.flatnonzero((seen.pool.depth == steps + 1) & (seen.pool.logprob > -np.inf))
    order = np.argsort(-seen.pool.logprob[level], kind="stable")
    return level[order][: int(np.sum(seen.frontier > -np.inf))]


def _path(pool, node: int) -> list[int]:
    """Return the pool indices of the path from below the root to `node`."""
    path = []
    while node >= 0:
        path.append(int(node))
        node = pool.parent[node]
    return path[::-1]


def _goes_this_way(tokens: np.ndarray, text: np.ndarray) -> int:
    """Compare path tokens with the text after the root.

    Returns:
      1 if the text begins with the tokens, 0 if it does not, -1 if it agrees but ends first.
    """
    count = min(len(tokens), len(text))
    if np.any(tokens[:count] != text[:count]):
        return 0
    return 1 if count == len(tokens) else -1


def save_labels(labels: Labels, path: Path, made_with: Mapping[str, Any] | None = None) -> None:
    """Write labels as .npz; `made_with` holds the settings they depend on, stored as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez(file, **labels._asdict(), **{MADE_WITH: np.array(json.dumps(made_with or {}))})


def load_labels(path: Path, made_with: Mapping[str, Any] | None = None) -> Labels:
    """Read labels that `save_labels` wrote.

    Args:
      path: .npz file.
      made_with: settings that the labels must have been made with; None accepts any.

    Raises:
      ValueError: the file holds no labels, or labels made with other settings.
    """
    with np.load(path) as arrays:
        if set(arrays.files) != {*Labels._fields, MADE_WITH}:
            raise ValueError(
                f"{path} holds no labels, or lacks their settings: delete it to make them anew"
            )
        if made_with is not None:
            check_made_with(path, json.loads(str(arrays[MADE_WITH])), made_with)
        return Labels(**{name: arrays[name] for name in Labels._fields})
