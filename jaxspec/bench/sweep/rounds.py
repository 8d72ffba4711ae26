"""Trace the rounds of decodes with a policy: the tokens expected of each, and those committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.measure.methods import Method
from jaxspec.bench.measure.prompt_files import LabelledPrompt
from jaxspec.core.state import Tree
from jaxspec.engine.loop import run
from jaxspec.engine.session import matmul_precision, prepare, run_prefill
from jaxspec.policies.bastion.score_correction import correct_scores


def trace_rounds(
    params, prompts: Sequence[LabelledPrompt], method: Method, options: dict[str, Any]
) -> list[dict[str, Any]]:
    """Decode every prompt once with a policy of `jaxspec.policies.bastion.controller` and look at
    each round.

    The policy starts with nothing seen and learns from prompt to prompt, so that what is expected
    of a round never rests on its own outcome. Times of such rounds mean nothing, for the host looks
    in between. The last round of a text is left out, since the stop or the limit cuts what it
    commits.

    Returns:
      A record a round: `method`, `prompt`, `rows` verified (1 where the round did not draft),
      `raw`, the sum of the rows' path probabilities, `corrected`, the same as the policy corrects
      them (raw where it does not), and `committed` tokens; with `raw_variance` and
      `corrected_variance`, see `estimate_variance`.
    """
    policy, records = method.options["policy"], []
    for index, prompt in enumerate(prompts):
        session = prepare(params, prompt.content, **(options | method.options | {"policy": policy}))
        with matmul_precision(session):
            state, own = run_prefill(session), []
            while not bool(np.all(state.done)):
                # A copy, for the rounds' state is donated.
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
    """What the first tree of a batch promised, by its own scores and by the corrected ones `right`
    [B, N].
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
    """Variance of the tokens that a tree commits, if its nodes are accepted with these
    probabilities: what no score can tell.

    A round commits more than d tokens where a node of depth d is accepted, and at most one of a
    depth is; of the count A of tokens, A^2 is the sum of 2 d + 1 over the d below A.

    Args:
      probability: float [N], of the rows' paths, the root's 1 included. depth: int [N].
    """
    reached = np.bincount(depth, probability.astype(np.float64))
    return max(float((2 * np.arange(len(reached)) + 1) @ reached - reached.sum() ** 2), 0.0)
