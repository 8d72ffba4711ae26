"""GammaTune: draft as deep as was accepted lately.

Gautam, Shrestha and Reddy 2025 (arXiv 2504.00030): every sequence has a window, the tokens that its
next round drafts. A round whose window was accepted whole widens it by a few tokens; any other
draws it towards the running mean of accepted tokens. GammaTune+ also stops inside a round where the
drafter's best token was improbable. Nothing is trained.
"""

from __future__ import annotations

import dataclasses
import functools

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.policies.protocol import Acts, Functions, Policy, Settings
from jaxspec.policies.thresholds.frontier import at_best

# Learning to Draft: half of EAGLE-3's default depth 8 to one and a half times of it. Its `widen` is
# not stated, nor is the threshold of GammaTune+: 0.4 is that of transformers' assisted generation.
PRESETS = {
    "gammatune-paper": {},
    "gammatune-ltd": {"rate": 0.2, "least": 4, "most": 12, "start": 8},
    "gammatune-plus": {"confidence": 0.4},
}
# The mean is rounded up to whole tokens: float32 errors of it are no tokens.
_ROUNDING = 1e-4


@dataclasses.dataclass(frozen=True)
class GammaTuneSettings(Settings):
    """Constants of the rule.

    Attributes:
      rate: weight of the newest round in the running mean.
      widen: tokens added to a window that was accepted whole.
      least, most: bounds of the window, drafted tokens of a path.
      start: the first window.
      confidence: GammaTune+: stop after a token whose distribution has no larger probability; 0
        never does.
    """

    rate: float = 0.3
    widen: int = 2
    least: int = 1
    most: int = 10
    start: int = 3
    confidence: float = 0.0

    def functions(self) -> Functions:
        return _functions(self)


@flax.struct.dataclass
class WindowState:
    """Attributes: window: int32 [B], drafted tokens of the next round. mean: float32 [B], of
    accepted drafted tokens.
    """

    window: jax.Array
    mean: jax.Array


def make_gammatune(widths: tuple[int, ...] = (), **constants) -> Policy:
    """The rule; `constants` as of `GammaTuneSettings`, see `PRESETS`."""
    return Policy(GammaTuneSettings(tuple(widths), **constants), ())


def init_windows(settings: GammaTuneSettings, shape: tuple[int, ...] = ()) -> WindowState:
    """Windows before any round."""
    return WindowState(
        jnp.full(shape, settings.start, jnp.int32), jnp.full(shape, settings.start, jnp.float32)
    )


def adjusted(
    settings: GammaTuneSettings, state: WindowState, accepted: jax.Array, longest: int | None = None
) -> WindowState:
    """The windows after rounds that accepted so many drafted tokens, int32 of the state's shape.

    Args:
      longest: drafted tokens that the tree can hold, where that is less than a window may be.
    """
    window = state.window if longest is None else jnp.minimum(state.window, longest)
    whole = accepted >= window
    mean = jnp.clip(
        (1 - settings.rate) * state.mean + settings.rate * accepted, settings.least, settings.most
    )
    fitted = jnp.ceil(mean - _ROUNDING).astype(jnp.int32)
    wider = jnp.clip(state.window + settings.widen, settings.least, settings.most)
    return WindowState(jnp.where(whole, wider, fitted), jnp.where(whole, state.mean, mean))


@functools.lru_cache
def _functions(settings: GammaTuneSettings) -> Functions:
    def deeper(controls, state, seen):
        inside = seen.steps + 1 < state.window
        if settings.confidence:
            inside &= at_best(seen.top[..., 0], seen.frontier) > settings.confidence
        return inside

    def observe(controls, state, outcome):
        new = adjusted(
            settings, state, outcome.accepted.count - 1, outcome.accepted.path.shape[1] - 1
        )
        return jax.tree.map(
            lambda new, old: jnp.where(outcome.drafted & outcome.live, new, old), new, state
        )

    needs = frozenset({"top"} if settings.confidence else ())
    acts = Acts(deeper=deeper)
    return Functions(lambda shape: init_windows(settings, (shape.batch,)), acts, observe, needs)
