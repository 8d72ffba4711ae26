"""The rank-1 gap of a draft tree (JetSpec, section 3.4.2 and appendix A).

The rank-1 branch follows the drafter's most probable token at every depth. Its gap is the sum of
the drafter's log-probabilities minus that of the target's: far above 0 where the tokens are likely
one by one, and no text has them in a row. Figure 4 and table 8 give it for one tree.
"""

from __future__ import annotations

import numpy as np

from jaxspec.call.output import DraftTree


def find_rank1_branch(tree: DraftTree) -> list[int]:
    """Return the rows of the branch of most probable children, without the root.

    Among children of equal probability the first one counts.
    """
    rows, row = [], 0
    while len(children := np.flatnonzero(tree.parent == row)):
        row = int(children[np.argmax(tree.logprob[children])])
        rows.append(row)
    return rows


def measure_rank1_gap(tree: DraftTree) -> np.ndarray:
    """Return the gap of the first d tokens of the rank-1 branch, d = 1, 2, …, its length.

    Args:
      tree: of a traced `decode`. The drafter's log-probabilities are those that paths are scored
        by: its own at a score temperature of 1 and without the noise of coupled drafting.

    Returns:
      float64 [depth], nats. The last one is the gap of the branch.

    Raises:
      ValueError: the trace does not hold the target's log-probabilities.
    """
    if tree.target_logprob is None:
        raise ValueError("this trace has no log-probabilities of the target: trace with decode")
    rows = find_rank1_branch(tree)
    target = np.cumsum(tree.target_logprob[rows].astype(np.float64))
    return tree.logprob[rows].astype(np.float64) - target
