"""GammaTune: draft as deep as was recently accepted.

Gautam, Shrestha and Reddy 2025 (arXiv 2504.00030): every sequence has a window, the tokens that its
next round drafts. A round that accepts its whole window widens it by a few tokens; any other moves
it towards the running mean of accepted tokens. GammaTune+ also stops within a round after a token
whose distribution has no large probability. Nothing is trained.
"""

from __future__ import annotations

import dataclasses
import functools

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.policies.protocol import Acts, Functions, Policy, PolicyConfig
from jaxspec.policies.registry import register, tagged
from jaxspec.policies.stopping import take_best

# Learning to Draft: from half of EAGLE-3's default depth 8 to one and a half times that. It states
# neither `widen` nor the threshold of GammaTune+: 0.4 comes from transformers' assisted generation.
PRESETS = {
    "gammatune-paper": {},
    "gammatune-ltd": {"rate": 0.2, "least": 4, "most": 12, "start": 8},
    "gammatune-plus": {"confidence": 0.4},
}
# The mean is rounded up to whole tokens; float32 errors must not add a token.
_ROUNDING = 1e-4


@tagged("gammatune")
@dataclasses.dataclass(frozen=True)
class GammaTuneConfig(PolicyConfig):
    """Constants of the rule.

    Attributes:
      rate: weight of the newest round in the running mean.
      widen: tokens added to a window after it was accepted whole.
      least, most: bounds of the window, drafted tokens of a path.
      start: the first window.
      confidence: of GammaTune+: stop after a token if its distribution's largest probability is not
        above this; 0 turns this off.
    """

    rate: float = 0.3
    widen: int = 2
    least: int = 1
    most: int = 10
    start: int = 3
    confidence: float = 0.0

    def functions(self) -> Functions:
        return _functions(self)


@tagged("gammatune-windows")
class WindowState(flax.struct.PyTreeNode):
    """Windows of B sequences.

    Attributes:
      window: int32 [B], drafted tokens of the next round.
      mean: float32 [B], running mean of accepted drafted tokens.
    """

    window: jax.Array
    mean: jax.Array


def make_gammatune(widths: tuple[int, ...] = (), **constants) -> Policy:
    """Make the rule's policy; `constants` are fields of `GammaTuneConfig`, see `PRESETS`."""
    return Policy(GammaTuneConfig(tuple(widths), **constants), ())


def init_windows(config: GammaTuneConfig, shape: tuple[int, ...] = ()) -> WindowState:
    """Make the windows before the first round."""
    return WindowState(
        jnp.full(shape, config.start, jnp.int32), jnp.full(shape, config.start, jnp.float32)
    )


def adjust_windows(
    config: GammaTuneConfig, state: WindowState, accepted: jax.Array, longest: int | None = None
) -> WindowState:
    """Adjust the windows after a round.

    Args:
      config: constants of the rule.
      state: windows before the round.
      accepted: int32 of the state's shape, accepted drafted tokens.
      longest: drafted tokens of the tree's longest path, which may be less than the window.
    """
    window = state.window if longest is None else jnp.minimum(state.window, longest)
    whole = accepted >= window
    mean = jnp.clip(
        (1 - config.rate) * state.mean + config.rate * accepted, config.least, config.most
    )
    fitted = jnp.ceil(mean - _ROUNDING).astype(jnp.int32)
    wider = jnp.clip(state.window + config.widen, config.least, config.most)
    return WindowState(jnp.where(whole, wider, fitted), jnp.where(whole, state.mean, mean))


@functools.lru_cache
def _functions(config: GammaTuneConfig) -> Functions:
    def deeper(controls, state, seen):
        inside = seen.steps + 1 < state.window
        if config.confidence:
            inside &= take_best(seen.top[..., 0], seen.frontier) > config.confidence
        return inside

    def observe(controls, state, outcome):
        new = adjust_windows(
            config, state, outcome.accepted.count - 1, outcome.accepted.path.shape[1] - 1
        )
        return jax.tree.map(
            lambda new, old: jnp.where(outcome.drafted & outcome.live, new, old), new, state
        )

    needs = frozenset({"top"} if config.confidence else ())
    acts = Acts(deeper=deeper)
    return Functions(lambda shape: init_windows(config, (shape.batch,)), acts, observe, needs)


for _name, _constants in PRESETS.items():
    register(_name, functools.partial(make_gammatune, **_constants))
