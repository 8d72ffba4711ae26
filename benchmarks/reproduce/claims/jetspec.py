"""The claims of JetSpec's tables 1 and 2, figures 2 and 4, tables 8 to 12, from decodes alone."""

from __future__ import annotations

from benchmarks.reproduce.claim import Claim
from benchmarks.reproduce.decide import decodes, gaps, phases
from benchmarks.reproduce.measure_decodes import BLOCKS, DFLASH, DFLASH_16, EAGLE

_BLOCK = ("dflash", "jetspec")
_CPU = "Yes: on two cores a large tree costs more than its tokens are worth."
_HEADS = "Yes: both heads were trained for minutes, with blocks of 8."
_EXPAND, _BEST = "jetspec-expand@{}/w7", "jetspec-best_first@{}"
_DDTREE = "dflash-best_first@{}"

CLAIMS = (
    Claim(
        id="jetspec/table-1/beats-dflash",
        says="JetSpec's largest tree accepts more than DFlash's chain of 16.",
        paper="10.76 against 7.79 (MATH-500)",
        needs=("trees-t0",),
        decide=decodes.at_largest("trees-t0", _EXPAND, DFLASH_16, "jetspec-expand"),
        drafters=_BLOCK,
        scale=_HEADS,
    ),
    Claim(
        id="jetspec/table-1/faster-than-dflash",
        says="JetSpec's largest tree is faster than DFlash's chain of 16.",
        paper="9.64 against 5.56 times plain decoding (MATH-500)",
        needs=("trees-t0",),
        decide=decodes.at_largest("trees-t0", _EXPAND, DFLASH_16, "jetspec-expand", speed=True),
        drafters=_BLOCK,
        scale=_CPU,
    ),
    Claim(
        id="jetspec/table-1/beats-eagle3",
        says="JetSpec's largest tree is faster than EAGLE-3's trees of 60 rows.",
        paper="more than twice",
        needs=("trees-t0",),
        decide=decodes.at_largest("trees-t0", _EXPAND, EAGLE, "jetspec-expand", speed=True),
        drafters=(*_BLOCK, "eagle3"),
        scale=_CPU,
    ),
    Claim(
        id="jetspec/table-1/small-budgets-are-alike",
        says="At 16 rows JetSpec accepts about as much as DFlash's chain of 16.",
        paper="within a few percent",
        needs=("trees-t0",),
        decide=decodes.accepts_alike("trees-t0", [(_BEST.format(16), DFLASH_16)], 0.1),
        drafters=_BLOCK,
        scale=_HEADS,
    ),
    Claim(
        id="jetspec/table-1/longer-blocks-degrade",
        says="DFlash accepts no more with blocks twice as long as it was trained for.",
        paper="block 32 below 16, trained at 16",
        needs=("trees-t0",),
        decide=decodes.accepts_more("trees-t0", DFLASH, DFLASH_16, 0.995),
        drafters=("dflash",),
        scale="Yes: texts that repeat themselves are easy far ahead.",
    ),
    Claim(
        id="jetspec/table-1/gain-survives-sampling",
        says="JetSpec's trees of 64 rows accept more than DFlash's chain at temperature 1.",
        paper="8.03 against 5.93 (GSM8K)",
        needs=("trees-t0", "trees-t1"),
        decide=decodes.survives("trees-t0", "trees-t1", _EXPAND.format(64), DFLASH_16, speed=False),
        drafters=_BLOCK,
        scale=_HEADS,
    ),
    Claim(
        id="jetspec/table-1/faster-when-sampled",
        says="They are faster than DFlash's chain at temperature 1.",
        paper="7.16 against 4.33 (GSM8K)",
        needs=("trees-t0", "trees-t1"),
        decide=decodes.survives("trees-t0", "trees-t1", _EXPAND.format(64), DFLASH_16),
        drafters=_BLOCK,
        scale=_CPU,
    ),
    Claim(
        id="jetspec/table-2/beats-ddtree",
        says="At the largest budget JetSpec accepts more than DDTree, best-first trees of DFlash.",
        paper="8.62 against 7.77 at 256 rows (GSM8K)",
        needs=("trees-t0",),
        decide=decodes.at_largest("trees-t0", _EXPAND, _DDTREE, "jetspec-expand"),
        drafters=_BLOCK,
        scale=_HEADS,
    ),
    Claim(
        id="jetspec/table-2/gain-grows-with-budget",
        says="Its gain over DDTree grows with the budget.",
        paper="small at 64 rows, 11 % at 256",
        needs=("trees-t0",),
        decide=decodes.gains_with_budget(
            "trees-t0", _EXPAND, _DDTREE, decodes.measured_rows("jetspec-expand")
        ),
        drafters=_BLOCK,
        scale=_HEADS,
    ),
    Claim(
        id="jetspec/table-2/speed-rises-with-budget",
        says="JetSpec is faster with every larger budget.",
        paper="5.98, 7.34, 7.82 at 64, 128, 256 rows",
        needs=("trees-t0",),
        decide=decodes.rises_with_budget("trees-t0", _EXPAND, "jetspec-expand"),
        drafters=_BLOCK,
        scale=_CPU,
    ),
    Claim(
        id="jetspec/figure-2/one-pass-for-any-length",
        says="A longer block takes hardly longer to draft.",
        paper="one forward pass",
        needs=("block-sizes",),
        decide=phases.draft_time_is_flat("block-sizes", "jetspec", BLOCKS, 1.5),
        drafters=_BLOCK,
        scale="Yes: on a CPU 32 slots take longer than 4.",
    ),
    Claim(
        id="jetspec/figure-2/long-drafts-pay-if-cheap",
        says="With one pass for any length, a longer block is not slower.",
        paper="equations 1 and 2",
        needs=("block-sizes",),
        decide=decodes.faster("block-sizes", "jetspec-chain@16/b16", "jetspec-chain@4/b4"),
        drafters=_BLOCK,
        scale=_CPU,
    ),
    Claim(
        id="jetspec/figure-4/faithful-more-often",
        says="More first trees of the causal head than of the bidirectional one are faithful.",
        paper="gap below 5 nats",
        needs=("gaps",),
        decide=gaps.faithful_share_is_larger("jetspec", "dflash"),
        drafters=_BLOCK,
        scale="Yes: with blocks of 8 the gaps are small in both.",
    ),
    Claim(
        id="jetspec/table-8/median-gap-is-smaller",
        says="The causal head's median rank-1 gap is smaller.",
        paper="smaller median",
        needs=("gaps",),
        decide=gaps.gap_is_larger("dflash", "jetspec", "median"),
        drafters=_BLOCK,
        scale="Yes: with blocks of 8 the gaps are small in both.",
    ),
    Claim(
        id="jetspec/table-8/mean-gap-is-smaller",
        says="Its mean rank-1 gap is smaller.",
        paper="smaller mean",
        needs=("gaps",),
        decide=gaps.gap_is_larger("dflash", "jetspec", "mean"),
        drafters=_BLOCK,
        scale="Yes: with blocks of 8 the gaps are small in both.",
    ),
    Claim(
        id="jetspec/table-8/on-most-prompts",
        says="Its gap is smaller on most prompts.",
        paper="share of prompts",
        needs=("gaps",),
        decide=gaps.gap_is_larger_on_most("dflash", "jetspec"),
        drafters=_BLOCK,
        scale="Yes: with blocks of 8 the gaps are small in both.",
    ),
    Claim(
        id="jetspec/table-9/accepted-falls-with-gap",
        says="Trees of a larger gap accept fewer tokens.",
        paper="by bin, from faithful to extreme",
        needs=("gaps",),
        decide=gaps.accepted_falls_with_gap(("jetspec", "dflash")),
        drafters=_BLOCK,
        scale="Yes: few trees are in the outer bins.",
    ),
)
