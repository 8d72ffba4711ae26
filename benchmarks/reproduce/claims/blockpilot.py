"""The claims of BlockPilot."""

from __future__ import annotations

from benchmarks.reproduce.claim import Claim
from benchmarks.reproduce.decide import blocks, decodes
from benchmarks.reproduce.measure_decodes import DFLASH, DFLASH_16, EAGLE

_FEW = "Yes: there are some 150 prompts to learn from, and blocks were trained with 8 slots."
_LABELS = "Yes: short answers tie between sizes; the paper's have up to 2,048 tokens."


def _ablation(name: str, says: str, paper: str, report: str, least: float = 1.0) -> Claim:
    return Claim(
        id=f"blockpilot/ablation/{name}",
        says=says,
        paper=paper,
        needs=("blockpilot",),
        decide=blocks.paper_is_best(report, least),
        drafters=("dflash",),
        scale=_FEW,
    )


CLAIMS = (
    Claim(
        id="blockpilot/finding-1/optimum-varies",
        says="The best block size varies between requests.",
        paper="no size is the best one of most requests",
        needs=("blockpilot",),
        decide=blocks.block_labels_vary(),
        drafters=("dflash",),
        scale=_LABELS,
    ),
    Claim(
        id="blockpilot/finding-1/oracle-gains",
        says="Knowing the best size of every request would gain.",
        paper="4.4 %, the size of the oracle",
        needs=("blockpilot",),
        decide=blocks.block("blockpilot", "oracle"),
        drafters=("dflash",),
        scale=_LABELS,
    ),
    Claim(
        id="blockpilot/finding-2/clusters-at-the-trained-size",
        says="The best sizes cluster around the trained one.",
        paper="14 to 18 for 16",
        needs=("blockpilot",),
        decide=blocks.block_labels_cluster(8),
        drafters=("dflash",),
        scale=_LABELS,
    ),
    Claim(
        id="blockpilot/table-1/accepts-more-than-fixed",
        says="The predictor accepts more than the best fixed size.",
        paper="6.59 against 6.31 (Qwen3-4B)",
        needs=("blockpilot",),
        decide=blocks.block("blockpilot", "raw logits"),
        drafters=("dflash",),
        scale=_FEW,
    ),
    Claim(
        id="blockpilot/table-1/faster-than-fixed",
        says="It is faster than the best fixed size, predictions included.",
        paper="4.17 against 3.99",
        needs=("blockpilot",),
        decide=blocks.block("blockpilot", "raw logits", "deployed"),
        drafters=("dflash",),
        scale="Yes: mini's round is so short that a prediction takes long beside it.",
    ),
    Claim(
        id="blockpilot/table-1/gain-survives-sampling",
        says="The predictor accepts more than the best fixed size at temperature 1.",
        paper="5.92 tokens a round, 4.20 times plain decoding",
        needs=("blockpilot",),
        decide=blocks.block("blockpilot", "raw logits", report="sampled"),
        drafters=("dflash",),
        scale=_FEW,
    ),
    Claim(
        id="blockpilot/table-1/dflash-faster-than-eagle3",
        says="DFlash, which it builds on, is faster than EAGLE-3.",
        paper="3.99 against less",
        needs=("trees-t0",),
        decide=decodes.faster("trees-t0", DFLASH, EAGLE),
        drafters=("dflash", "eagle3"),
        scale="Yes: EAGLE-3's drafter is one layer here, and its passes are cheap.",
    ),
    Claim(
        id="blockpilot/table-1/twice-the-block-is-worse",
        says="Twice the trained block is slower.",
        paper="DFlash-32 below DFlash-16",
        needs=("trees-t0",),
        decide=decodes.faster("trees-t0", DFLASH, DFLASH_16),
        drafters=("dflash",),
        scale="No: verification of 16 rows costs more on a CPU than on a GPU.",
    ),
    Claim(
        id="blockpilot/ablation/raw-beats-normalised",
        says="Raw logits are a better input than normalised ones.",
        paper="raw above normalised",
        needs=("blockpilot",),
        decide=blocks.block_input_beats("raw logits", "zscore"),
        drafters=("dflash",),
        scale=_FEW,
    ),
    Claim(
        id="blockpilot/ablation/softmax-is-worst",
        says="A softmax is a worse input than normalised logits.",
        paper="normalised above softmax",
        needs=("blockpilot",),
        decide=blocks.block_input_beats("zscore", "softmax"),
        drafters=("dflash",),
        scale=_FEW,
    ),
    Claim(
        id="blockpilot/premise/prefill-tells-the-size",
        says="The prefill's logits tell which size is best: shuffled among prompts they lose.",
        paper="assumed; no control was printed",
        needs=("blockpilot",),
        decide=blocks.beats_shuffled("raw logits"),
        drafters=("dflash",),
        scale=_FEW,
    ),
    _ablation("width", "2,048 units beat 1,024.", "1,024 < 2,048 = 4,096", "width-1024"),
    _ablation("wider", "4,096 units are no better.", "1,024 < 2,048 = 4,096", "width-4096", 0.995),
    _ablation("one-layer", "Two layers beat one.", "two are best", "layers-1"),
    _ablation("three-layers", "Three are no better.", "two are best", "layers-3", 0.995),
    _ablation("near", "Sizes up to two from the trained one beat one.", "k = 2", "reach-1"),
    _ablation("far", "Three are no better than two.", "k = 3 hurts", "reach-3", 0.995),
    Claim(
        id="blockpilot/overhead/time",
        says="A prediction takes less than 2 % of an answer's time.",
        paper="7.34 ms once a request",
        needs=("blockpilot",),
        decide=blocks.block_prediction_is_cheap(0.02),
        drafters=("dflash",),
        scale="Yes: mini answers in a fifth of a second.",
    ),
)
