"""Observations made up for tests of policies: two sequences, two frontier nodes each."""

import jax
import numpy as np

from jaxspec.core.state import Accepted
from jaxspec.policies.protocol import Observation, Outcome, RoundShape

FRONTIER = np.log(np.float32([[0.1, 0.6], [0.5, 0.2]]))
SHAPE = RoundShape(batch=2, rows=12, depth=6, nodes=2, candidates=2, steps=5)


def make_seen(steps=0, **fields) -> Observation:
    """What a policy sees after `steps` draft steps."""
    fields = {"frontier": FRONTIER} | fields
    return Observation(np.array([10, 20]), np.array([True, True]), steps, **fields)


def ask(policy, name: str, observation, state=None):
    """The policy's answer to one act, compiled."""
    functions = policy.config.functions()
    state = functions.init(SHAPE) if state is None else state
    return np.asarray(jax.jit(getattr(functions.act, name))(policy.controls, state, observation))


def make_outcome(counts, drafted=True, live=(True, True), longest=6) -> Outcome:
    """A round that committed `counts` tokens."""
    accepted = Accepted(np.zeros((2, longest + 1), np.int32), np.array(counts, np.int32), None)
    return Outcome(np.bool_(drafted), None, None, None, accepted, None, np.array(live))
