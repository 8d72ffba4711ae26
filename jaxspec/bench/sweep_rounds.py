"""Rounds of decodes with a policy, one by one: what was expected of each, and what it committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec import api
from jaxspec.bench.methods import Method
from jaxspec.bench.prompts import Prompt
from jaxspec.loop import run


def rounds_of(params, prompts: Sequence[Prompt], method: Method, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Decode every prompt once with a policy of `jaxspec.policies.controller` and look at each round.

    The policy starts with nothing seen and learns from prompt to prompt, so that what is expected of a round never rests on
    its own outcome. Times of such rounds mean nothing, for the host looks in between. The last round of a text is left out,
    since the stop or the limit cuts what it commits.

    Returns:
      A record a round: `method`, `prompt`, `rows` verified (1 where the round did not draft), `raw`, the sum of the rows' path
      probabilities, `corrected`, the same as the policy corrects them (raw where it does not), and `committed` tokens.
    """
    policy, records = method.options["policy"], []
    for index, prompt in enumerate(prompts):
        session = api._prepare(params, prompt.content, **(options | method.options | {"policy": policy}))
        with api._precision(session):
            state = api._prefill(session)
            while not bool(np.all(state.done)):
                before = float(state.control.worth)
                state = run(session.params, session.request, state, jnp.int32(1), config=session.config)
                tree, count, worth = jax.device_get((state.tree, state.accepted.count, state.control.worth))
                records.append(_record(method.name, index, tree, int(count[0]), float(worth) - before))
            del records[-1:]
        policy = policy.replace(state=state.control)
    return records


def _record(method: str, prompt: int, tree, committed: int, corrected: float) -> dict[str, Any]:
    rows = int(tree.size[0])
    raw = float(np.exp(tree.logprob[0, :rows].astype(np.float64)).sum())
    return {"method": method, "prompt": prompt, "rows": rows, "raw": raw, "corrected": corrected, "committed": committed}
