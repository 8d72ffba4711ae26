"""Policies decide how much a round drafts and verifies; see README.md in this folder.

    policy = jaxspec.policies.make_bastion(costs)
    jaxspec.decode(params, prompt, speculation=jaxspec.Speculation(policy=policy))

Importing this package registers the names and tags of all policies.
"""

from jaxspec.policies.bastion.controller import make_bastion
from jaxspec.policies.compose import compose
from jaxspec.policies.learned.blockpilot import make_blockpilot
from jaxspec.policies.learned.c2t import make_c2t
from jaxspec.policies.learned.disco import make_disco
from jaxspec.policies.learned.ltd import make_ltd
from jaxspec.policies.learned.regression import make_regression
from jaxspec.policies.learned.specdec_plus import make_specdec_plus
from jaxspec.policies.named import make_named
from jaxspec.policies.protocol import (
    Acts,
    Functions,
    Observation,
    Outcome,
    Policy,
    PolicyConfig,
    RoundShape,
    keep_state,
)
from jaxspec.policies.registry import policy_forms, register, tagged
from jaxspec.policies.rules.ddd import make_ddd
from jaxspec.policies.rules.dspark import make_dspark, make_dspark_threshold
from jaxspec.policies.rules.gammatune import make_gammatune
from jaxspec.policies.rules.random_actions import make_random
from jaxspec.policies.rules.replayed import make_replay
from jaxspec.policies.rules.static import make_static
from jaxspec.policies.rules.svip import make_svip
from jaxspec.policies.store import load_policy, save_policy

__all__ = [
    "Acts",
    "Functions",
    "Observation",
    "Outcome",
    "Policy",
    "PolicyConfig",
    "RoundShape",
    "compose",
    "keep_state",
    "load_policy",
    "make_bastion",
    "make_blockpilot",
    "make_c2t",
    "make_ddd",
    "make_disco",
    "make_dspark",
    "make_dspark_threshold",
    "make_gammatune",
    "make_ltd",
    "make_named",
    "make_random",
    "make_regression",
    "make_replay",
    "make_specdec_plus",
    "make_static",
    "make_svip",
    "policy_forms",
    "register",
    "save_policy",
    "tagged",
]
