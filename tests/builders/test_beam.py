import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.builders import Proposes, beam
from jaxspec.core.state import Candidates
from jaxspec.core.tree import validate

CASES = 40


def brute_force(logprob: np.ndarray, budget: int, limit: int) -> dict[str, np.ndarray]:
    """The `width` best children of every level in turn, by (cost in float64, rank path); tokens are
    ranks.
    """
    width = logprob.shape[1]
    beam, nodes = [(0.0, ())], [(0.0, ())]
    for steps in logprob[:limit].astype(np.float64):
        below = [(cost - steps[r], (*path, r)) for cost, path in beam for r in range(width)]
        beam = sorted(node for node in below if node[0] < np.inf)[:width]
        nodes += beam[: budget - len(nodes)]
    nodes.sort()
    row = {path: i for i, (_, path) in enumerate(nodes)}
    return {
        "tokens": np.array([path[-1] if path else -1 for _, path in nodes]),
        "parents": np.array([row[path[:-1]] if path else -1 for _, path in nodes]),
        "depths": np.array([len(path) for _, path in nodes]),
        "scores": np.array([-cost for cost, _ in nodes]),
    }


@pytest.mark.parametrize(("depth", "width", "budget"), [(5, 4, 16), (3, 9, 28)])
def test_equals_brute_force(assert_tree, depth, width, budget):
    rng = np.random.default_rng(depth)
    # Coarse values make ties within and across depths; a few candidates cannot be used.
    coarse = rng.choice(
        [0.0, -0.25, -0.5, -1.0, -3.0, -np.inf],
        (CASES // 2, depth, width),
        p=[0.1, 0.2, 0.2, 0.3, 0.15, 0.05],
    )
    fine = -rng.exponential(2, (CASES // 2, depth, width))
    logprob = -np.sort(-np.concatenate([coarse, fine]).astype(np.float32))
    builder = beam(width).bind(Proposes(depth, depth, 100, budget))
    assert (builder.rows, builder.candidates, builder.longest) == (
        budget,
        width,
        -(-(budget - 1) // width),
    )
    limits = rng.choice([builder.longest, builder.longest - 1], CASES)
    token = np.tile(np.arange(width, dtype=np.int32), (CASES, depth, 1))
    trees = jax.jit(builder.build)(
        Candidates(token, logprob), jnp.zeros(CASES, jnp.int32), jnp.asarray(limits)
    )
    validate(trees)
    for b in range(CASES):
        assert_tree(
            trees, b, brute_force(logprob[b], budget, limits[b]), f"{logprob[b]} {limits[b]}"
        )


@pytest.mark.parametrize(
    ("depth", "vocab", "budget", "width", "expected"),
    [
        (7, 100, 32, None, (32, 5, 7)),
        (7, 100, 32, 10, (32, 10, 4)),
        (7, 100, 32, 2, (15, 2, 7)),
        (7, 3, 32, None, (22, 3, 7)),
        (7, 100, 1, None, (1, 1, 0)),
    ],
)
def test_sizes(depth, vocab, budget, width, expected):
    builder = beam(width).bind(Proposes(depth, depth, vocab, budget))
    assert (builder.rows, builder.candidates, builder.longest) == expected
