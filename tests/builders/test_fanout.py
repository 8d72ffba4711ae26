import numpy as np
import pytest

from jaxspec.builders import fanout


def gaps(*values: float, width: int = 7) -> np.ndarray:
    """Log-probabilities whose best two differ by the given gaps."""
    logprob = np.full((len(values), width), -9.0, np.float32)
    logprob[:, 0] = -1
    logprob[:, 1:2] = -1 - np.array(values)[:, None]
    return logprob


def test_top2gap_narrows_with_the_gap():
    # 7 * sigmoid(1 - gap) = 5.12, 3.5 (half to even), 0.82, 0.06
    assert fanout.top2gap(gaps(0, 1, 3, 6)).tolist() == [5, 4, 1, 1]
    assert fanout.top2gap(gaps(0, 0)[:, :1]).tolist() == [1, 1]


def test_rank_histogram_counts_accepted_ranks():
    logprob = gaps(0, 0, 0, 0, width=3)
    profile = [[0.5, 0.01, 0.02], [0.0, 0.0], []]
    assert fanout.rank_histogram(logprob, profile).tolist() == [2, 1, 3, 3]
    assert fanout.rank_histogram(logprob, profile, threshold=0).tolist() == [3, 3, 3, 3]
    assert fanout.rank_histogram(logprob[:2]).tolist() == [3, 3]


@pytest.mark.parametrize(
    ("gap", "task", "caps"),
    [
        (3, None, [1, 1, 1]),
        (1.5, None, [3, 2, 1]),
        (0.5, None, [5, 5, 1]),
        (3, "chat", [5, 5, 1]),
        (3, "poetry", [3, 2, 1]),
    ],
)
def test_task_router_goes_by_task_then_by_gap(gap, task, caps):
    assert fanout.task_router(gaps(gap, gap, gap, width=5), task).tolist() == caps


def test_class_histogram_reads_caps_and_rates():
    histograms = {"decisive_task": [2, 9], "uncertain_task": [[0.5, 0.0, 0.1, 0.0, 0.2], [0.0]]}
    assert fanout.class_histogram(gaps(0, 0, 0, width=4), histograms, "math").tolist() == [2, 4, 1]
    assert fanout.class_histogram(gaps(0, 0, 0, width=4), histograms).tolist() == [3, 1, 1]
    assert fanout.class_histogram(gaps(0, 0, 0, width=4), histograms, "balanced_task").tolist() == [
        3,
        2,
        1,
    ]


def test_reasoning_router_is_a_chain_while_reasoning():
    assert fanout.reasoning_router(gaps(1, 1, 1)).tolist() == [2, 2, 1]
    assert fanout.reasoning_router(gaps(1, 1, 1), True).tolist() == [1, 1, 1]
    assert fanout.reasoning_router(gaps(2, 2, 2)).tolist() == [1, 1, 1]
    assert fanout.looks_like_reasoning("So: let's THINK about it")
    assert fanout.looks_like_reasoning(task="Math")
    assert not fanout.looks_like_reasoning("Tell me a story", "chat")


def test_entropy_rules_narrow_with_the_entropy():
    logprob, entropy = gaps(0, 0, 0, 0), np.array([0.5, 1.75, 2.0, 3.0], np.float32)
    assert fanout.entropy_gate(logprob, entropy).tolist() == [
        7,
        4,
        3,
        1,
    ]  # 7 * 0.5 is 3.5: half to even
    assert fanout.entropy_gate(logprob, entropy, 2.0, 2.0).tolist() == [7, 7, 1, 1]
    assert fanout.entropy_soft(logprob, entropy).tolist() == [5, 3, 3, 2]
    even = np.log(np.full((1, 4), 0.25, np.float32))
    assert fanout.entropy_topk(even).tolist() == [1]  # 4 * (1.6 - log 4) / 1.3 is 0.66
    assert fanout.entropy_topk(even - 5.0, high=3.0).tolist() == [2]
    assert fanout.entropy_topk(np.array([[0.0, -np.inf]], np.float32)).tolist() == [2]


def test_mass_and_rank_rules():
    assert fanout.prob_mass(
        np.log(np.array([[0.5, 0.3], [0.5, 0.1], [0.2, 0.1]], np.float32))
    ).tolist() == [2, 1, 1]
    assert fanout.rank_decay(gaps(0, 0)).tolist() == [[7, 4, 2, 1, 1, 1, 1]] * 2
    assert fanout.top2gap(gaps(0, 1, 3, 6), strength=0.5).tolist() == [6, 5, 4, 4]
    assert fanout.top2gap(gaps(0, 1, 3, 6), strength=0.0).tolist() == [7, 7, 7, 7]


def test_make_fanout_shares_equal_settings_and_names_wrong_ones():
    histograms = {"decisive_task": [2, 1]}
    rule = fanout.make_fanout("class_histogram", histograms=histograms, task="math")
    assert rule == fanout.make_fanout("class_histogram", task="math", histograms=dict(histograms))
    assert rule(gaps(0, 0, 0)).tolist() == [2, 1, 1]
    with pytest.raises(ValueError, match="unknown fan-out rule 'top3': choose one of top2gap"):
        fanout.make_fanout("top3")
    with pytest.raises(
        ValueError, match="fan-out rule top2gap: got an unexpected keyword argument 'tau'"
    ):
        fanout.make_fanout("top2gap", tau=1)
    with pytest.raises(
        ValueError, match="fan-out rule class_histogram: missing a required argument: 'histograms'"
    ):
        fanout.make_fanout("class_histogram")
