"""Trace the rounds of decodes with a policy: the expected and the committed tokens of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.measure.methods import Method
from jaxspec.call.options import group_options
from jaxspec.call.session import matmul_precision, prepare, run_prefill
from jaxspec.core.state import Tree
from jaxspec.io.text.prompt_files import LabelledPrompt
from jaxspec.policies.bastion.score_correction import correct_scores
from jaxspec.round.loop import run


def trace_rounds(
    params, prompts: Sequence[LabelledPrompt], method: Method, options: dict[str, Any]
) -> list[dict[str, Any]]:
    """Decode every prompt once with a policy of `jaxspec.policies.bastion.controller` and record
    each round.

    The policy starts without observations and learns from prompt to prompt, so the expectation for
    a round never depends on its own outcome. Times of these rounds mean nothing, since the host
    reads the state between rounds. The last round of a text is left out, since the stop or the
    limit cuts it.

    Returns:
      A record per round: `method`; `prompt`; `rows` verified (1 if the round did not draft); `raw`,
      the sum of the rows' path probabilities; `corrected`, the same sum with the policy's
      corrections (`raw` if it has none); `committed` tokens; and `raw_variance` and
      `corrected_variance`, see `estimate_variance`.
    """
    policy, records = method.options["policy"], []
    for index, prompt in enumerate(prompts):
        session = prepare(
            params, prompt.content, **group_options(**options | method.options | {"policy": policy})
        )
        with matmul_precision(session):
            state, own = run_prefill(session), []
            while not bool(np.all(state.done)):
                # Copy it, since the rounds' state is donated.
                scores = jax.tree.map(jnp.copy, state.control.scores)
                state = run(
                    session.params, session.request, state, jnp.int32(1), config=session.config
                )
                right = (
                    correct_scores(scores, state.tree.logprob, state.tree.depth)
                    if policy.config.corrected
                    else None
                )
                tree, count, right = jax.device_get((state.tree, state.accepted.count, right))
                own.append(
                    {"method": method.name, "prompt": index, "committed": int(count[0])}
                    | _expected(tree, right)
                )
        records += own[:-1]
        policy = policy.replace(state=state.control)
    return records


def _expected(tree: Tree, right: np.ndarray | None) -> dict[str, Any]:
    """Compute the expected tokens of the first tree of a batch, from its own scores and from the
    corrected scores `right` [B, N].
    """
    rows = int(tree.size[0])
    raw, record = np.exp(tree.logprob[0, :rows].astype(np.float64)), {"rows": rows}
    for name, value in {"raw": raw, "corrected": raw if right is None else right[0, :rows]}.items():
        record |= {
            name: float(value.sum()),
            f"{name}_variance": estimate_variance(value, tree.depth[0, :rows]),
        }
    return record


def estimate_variance(probability: np.ndarray, depth: np.ndarray) -> float:
    """Compute the variance of the number of tokens that a tree commits, if its nodes are accepted
    with these probabilities. No score can predict this variance.

    A round commits more than d tokens if a node of depth d is accepted, and at most one node of
    each depth is accepted. For the count A of tokens, A^2 is the sum of 2 d + 1 over all d < A.

    Args:
      probability: float [N], probability of each row's path, the root's 1 included.
      depth: int [N], depth of each row.
    """
    reached = np.bincount(depth, probability.astype(np.float64))
    return max(float((2 * np.arange(len(reached)) + 1) @ reached - reached.sum() ** 2), 0.0)
