"""The speed of speculative decoding by acceptance rate, depth and cost of drafting.

JetSpec (arXiv 2606.18394), equations 1 and 2, after Leviathan et al. 2023: with an acceptance rate
alpha of every token and gamma drafted tokens, a round commits (1 - alpha^(gamma + 1)) / (1 - alpha)
tokens on average, the bonus included. It takes 1 + gamma c times as long as an autoregressive one,
where c = T_draft / (gamma T_verify) is the cost of drafting a token. A drafter of one forward has a
c that falls as 1 / gamma; that of a drafter of one forward a token stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

# Rates and costs of figures.
ALPHAS, COSTS = (0.6, 0.7, 0.8, 0.9), (0.01, 0.05, 0.1)


def expected_tokens(alpha: float | np.ndarray, gamma: float | np.ndarray) -> np.ndarray:
    """Compute the mean tokens of a round, equation 1: float64 of the arguments' joint shape.

    Args:
      alpha: acceptance rate of a token, 0 to 1.
      gamma: drafted tokens.
    """
    alpha, gamma = np.broadcast_arrays(np.asarray(alpha, float), np.asarray(gamma, float))
    apart = np.where(alpha < 1, 1 - alpha, 1)
    return np.where(alpha < 1, (1 - alpha ** (gamma + 1)) / apart, gamma + 1)


def expected_speed(
    alpha: float | np.ndarray, cost: float | np.ndarray, gamma: float | np.ndarray
) -> np.ndarray:
    """Compute the speed over autoregressive decoding, equation 2.

    Args:
      alpha: acceptance rate of a token, 0 to 1.
      cost: c, time to draft a token over that of a verification.
      gamma: drafted tokens.
    """
    return expected_tokens(alpha, gamma) / (1 + np.asarray(gamma, float) * cost)


def draft_cost(draft: float | None, verify: float | None, gamma: int) -> float | None:
    """Compute c = T_draft / (gamma T_verify); None if a time is unknown or nothing is drafted.

    Args:
      draft, verify: times of drafting and verifying in a round, in the same unit.
      gamma: longest drafted path in tokens.
    """
    if draft is None or not verify or gamma < 1:
        return None
    return draft / (gamma * verify)


def find_alpha(tokens: float, gamma: int) -> float:
    """Find the acceptance rate at which rounds of `gamma` drafted tokens commit `tokens`.

    Raises:
      ValueError: no rate does: `tokens` are below 1 or above gamma + 1.
    """
    if not 1 <= tokens <= gamma + 1:
        raise ValueError(
            f"{tokens:g} tokens a round of {gamma} drafted ones: give 1 to {gamma + 1}"
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        below = expected_tokens(middle, gamma) < tokens
        low, high = (middle, high) if below else (low, middle)
    return high


def plot_expected_speed(
    path: Path,
    alphas: Sequence[float] = ALPHAS,
    costs: Sequence[float] = COSTS,
    *,
    forward: float = 0.2,
    longest: int = 32,
) -> None:
    """Plot speed by gamma, as JetSpec's figure 2: a panel for each way to draft.

    Args:
      path: file to write.
      alphas: acceptance rates, one line each.
      costs: c of drafters of one forward a token, one panel each.
      forward: T_draft / T_verify of a drafter of one forward; its c is this over gamma.
      longest: largest gamma.
    """
    from matplotlib.figure import Figure

    gamma = np.arange(1, longest + 1)
    panels = {f"c = {cost:g}, one forward a token": cost for cost in costs}
    panels |= {f"c = {forward:g} / gamma, one forward": forward / gamma}
    figure = Figure(figsize=(4 * len(panels), 3.5), layout="constrained")
    for axes, (title, cost) in zip(
        figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True
    ):
        for alpha in alphas:
            axes.plot(gamma, expected_speed(alpha, cost, gamma), label=f"alpha {alpha:g}")
        axes.axhline(1, color="grey", linestyle=":")
        axes.set(title=title, xlabel="gamma, drafted tokens")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("speed over autoregressive decoding")
    figure.axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=120)
