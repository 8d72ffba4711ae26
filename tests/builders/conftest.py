"""Golden trees of the DDTree and JetSpec reference code, stacked so that one compilation serves
many cases.
"""

import numpy as np
import pytest
from golden_data import arrays, records

from jaxspec.core.state import Candidates


class GoldenTrees:
    """Inputs by case and expected trees, in the reference's order of nodes."""

    def __init__(self, method: str, prefix: str, trees: str, nodes: str = ""):
        self.nodes = nodes
        self.arrays = arrays(method, "trees.npz")
        self.prefix = prefix
        self.trees = records(method, "trees_index.json")[trees]
        self.cases = sorted({tree["case"] for tree in self.trees})

    def candidates(self, case: str) -> Candidates:
        """The reference's ranked tokens and log-probabilities, without a batch axis."""
        return Candidates(
            *(self.arrays[f"{self.prefix}_{what}__{case}"] for what in ("tokens", "logprobs"))
        )

    def logits(self, case: str) -> np.ndarray:
        return self.arrays[f"logits__{case}"]

    def stacked(self, cases: list[str]) -> Candidates:
        """Candidates of several cases, filled up to common shapes with candidates that must not be
        used.
        """
        all_cases = [self.candidates(case) for case in self.cases]
        shape = (len(cases), *np.max([c.token.shape for c in all_cases], axis=0))
        token, logprob = np.full(shape, -1, np.int32), np.full(shape, -np.inf, np.float32)
        for b, case in enumerate(cases):
            one = self.candidates(case)
            depth, width = one.token.shape
            token[b, :depth, :width], logprob[b, :depth, :width] = one.token, one.logprob
        return Candidates(token, logprob)

    def entropies(self, cases: list[str], depth: int) -> np.ndarray:
        """Of the full distributions, float32 [cases, depth], 0 beyond a case's own depth."""
        out = np.zeros((len(cases), depth), np.float32)
        for case in set(cases):
            logits = self.logits(case).astype(np.float64)
            logprob = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            out[[other == case for other in cases], : len(logits)] = -(
                np.exp(logprob) * logprob
            ).sum(-1)
        return out

    def expected(self, tree: dict) -> dict[str, np.ndarray]:
        rows = slice(tree["offset"], tree["offset"] + tree["n"])
        return {
            what: self.arrays[self.nodes + what][rows]
            for what in ("tokens", "parents", "depths", "scores")
        }


@pytest.fixture(scope="session")
def ddtree() -> GoldenTrees:
    return GoldenTrees("ddtree", "top", "trees")


@pytest.fixture(scope="session")
def jetspec() -> GoldenTrees:
    return GoldenTrees("jetspec", "topk", "current")


@pytest.fixture(scope="session")
def historical() -> GoldenTrees:
    """JetSpec's trees under rules and scores that its code has dropped since (commit e162022)."""
    return GoldenTrees("jetspec", "topk", "historical", "hist_")


@pytest.fixture(scope="session")
def sorted_nodes():
    """The reference's nodes, from order of expansion to order of score (stable: parents stay before
    children).
    """

    def sort(
        nodes: dict[str, np.ndarray], score: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        order = np.argsort(
            -(nodes["scores"] if score is None else score).astype(np.float64), kind="stable"
        )
        row = np.argsort(order)
        parents = np.where(nodes["parents"] < 0, -1, row[nodes["parents"]])
        return {
            **{what: nodes[what][order] for what in ("tokens", "depths", "scores")},
            "parents": parents[order],
        }

    return sort


@pytest.fixture(scope="session")
def assert_tree():
    """Compare one tree of a batch with expected nodes in row order (the root's token excepted)."""

    def check(tree, b: int, nodes: dict[str, np.ndarray], label: str = "") -> None:
        size = len(nodes["tokens"])
        assert int(tree.size[b]) == size, label
        np.testing.assert_array_equal(tree.token[b, 1:size], nodes["tokens"][1:], err_msg=label)
        np.testing.assert_array_equal(tree.parent[b, :size], nodes["parents"], err_msg=label)
        np.testing.assert_array_equal(tree.depth[b, :size], nodes["depths"], err_msg=label)
        np.testing.assert_allclose(
            tree.logprob[b, :size], nodes["scores"], rtol=0, atol=1e-5, err_msg=label
        )

    return check
