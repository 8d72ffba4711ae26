"""The policy of a call: whether a tuner chooses it, and the state that it begins with."""

from __future__ import annotations

import jax

from jaxspec.call import arguments
from jaxspec.policies.protocol import Policy
from jaxspec.round.plan import Plan


def leaves_open(policy: Policy | str | None, fixed: bool) -> bool:
    """Say whether a call leaves to a tuner how much its rounds draft and verify.

    Args:
      policy: as given.
      fixed: whether the caller fixed what rounds verify.
    """
    automatic = arguments.check_policy(policy) or (policy is None and not fixed)
    if jax.process_count() == 1:
        return automatic
    # Clocks of several processes differ, and all must decide alike.
    if policy is not None and automatic:
        raise ValueError(
            "the policy 'auto' times rounds, and several processes would choose differently: "
            "give a budget, or a policy with costs from `jaxspec calibrate`"
        )
    return False


def start_policy(policy: Policy, plan: Plan, batch: int, temperature: float) -> Policy | None:
    """Return the policy with a state: its own, or a new one if it has none for this temperature.

    Returns None if nothing is left to decide, as for `ar` or trees of a single row.
    """
    if plan.policy is None:
        return None
    shape = plan.shape(batch)
    policy.config.check(shape)
    policy = policy.at_temperature(temperature)
    # On the host: rounds donate their copy of the state, and the caller may use the policy again.
    new = jax.device_get(plan.policy.init(shape))
    if policy.state is None:
        return policy.replace(state=new)
    given = jax.device_get(policy.state)
    if jax.tree.structure(given) != jax.tree.structure(new) or any(
        one.shape != other.shape or one.dtype != other.dtype
        for one, other in zip(jax.tree.leaves(given), jax.tree.leaves(new), strict=True)
    ):
        raise ValueError(
            f"the policy's state comes from a call of other sizes than {shape}: "
            "reset it with policy.replace(state=None)"
        )
    return policy.replace(state=given)
