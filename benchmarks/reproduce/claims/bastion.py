"""The claims of BASTION."""

from __future__ import annotations

from benchmarks.reproduce.claim import Claim
from benchmarks.reproduce.decide import decodes, devices, sweeps
from benchmarks.reproduce.measure_decodes import BASTION, DFLASH_16, EAGLE, STATIC

_CPU = (
    "Yes: on two cores the time of verification grows with the first rows, on a GPU from some 200."
)
_SHORT = "Yes: mini's texts repeat themselves, and its drafters know little else."
_NO = "No: acceptance of trees does not depend on the device."
_BLOCK = ("dflash",)
_TREE = "dflash-best_first@64"

CLAIMS = (
    Claim(
        id="bastion/table-1/faster-than-dflash",
        says="BASTION is faster than DFlash's chain of 16 at temperature 0.",
        paper="6.61 against 4.76 times plain decoding (Qwen3-8B, A100)",
        needs=("trees-t0",),
        decide=decodes.faster("trees-t0", BASTION, DFLASH_16),
        drafters=_BLOCK,
        scale=_CPU,
    ),
    Claim(
        id="bastion/table-1/faster-than-eagle3",
        says="BASTION is faster than EAGLE-3's trees of 60 rows at temperature 0.",
        paper="6.61 against 2.70",
        needs=("trees-t0",),
        decide=decodes.faster("trees-t0", BASTION, EAGLE),
        drafters=(*_BLOCK, "eagle3"),
        scale=_CPU,
    ),
    Claim(
        id="bastion/table-1/dflash-faster-than-eagle3",
        says="DFlash's chain is faster than EAGLE-3's trees.",
        paper="4.76 against 2.70",
        needs=("trees-t0",),
        decide=decodes.faster("trees-t0", DFLASH_16, EAGLE),
        drafters=(*_BLOCK, "eagle3"),
        scale=_CPU,
    ),
    Claim(
        id="bastion/table-1/accepts-more-than-dflash",
        says="Best-first trees accept more tokens a round than the chain of 16.",
        paper="8.48 against 6.24",
        needs=("trees-t0",),
        decide=decodes.accepts_more("trees-t0", _TREE, DFLASH_16),
        drafters=_BLOCK,
        scale=_NO,
    ),
    Claim(
        id="bastion/table-1/gain-survives-sampling",
        says="BASTION is faster than DFlash's chain at temperature 1.",
        paper="6.53 against DFlash's smaller gain; its acceptance there is not lossless",
        needs=("trees-t0", "trees-t1"),
        decide=decodes.survives("trees-t0", "trees-t1", BASTION, DFLASH_16),
        drafters=_BLOCK,
        scale=_CPU,
    ),
    Claim(
        id="bastion/table-1/trees-accept-more-when-sampled",
        says="Best-first trees accept more than the chain of 16 at temperature 1.",
        paper="8.45 against 5.45 tokens a round, not lossless",
        needs=("trees-t0", "trees-t1"),
        decide=decodes.survives("trees-t0", "trees-t1", _TREE, DFLASH_16, speed=False),
        drafters=_BLOCK,
        scale=_NO,
    ),
    Claim(
        id="bastion/table-5/gain-on-another-gpu",
        says="Trees pay on an H100 as on an A100: any budget beats plain decoding of one sequence.",
        paper="6.46 on an H100, 6.61 on an A100",
        needs=("batches-a100", "batches-h100"),
        decide=devices.all_of(
            devices.faster_than_plain("batches-a100", 1),
            devices.faster_than_plain("batches-h100", 1),
        ),
        drafters=("jetspec",),
        scale="No: rounds take what the roofline says of an 8B model.",
    ),
    Claim(
        id="bastion/figure-2/drafting-is-constant",
        says="Drafting takes as long at every budget; verification grows with it.",
        paper="verification 22 ms at 32 rows, 56 ms at 1,024",
        needs=("sweep-t0",),
        decide=sweeps.drafting_is_flat("sweep-t0"),
        drafters=_BLOCK,
        scale=_CPU,
    ),
    Claim(
        id="bastion/figure-2/acceptance-saturates",
        says="Tokens a round saturate as the budget grows.",
        paper="concave",
        needs=("sweep-t0",),
        decide=sweeps.saturates("sweep-t0"),
        drafters=_BLOCK,
        scale=_NO,
    ),
    Claim(
        id="bastion/figure-2/little-beyond-64-rows",
        says="Beyond 64 rows, twice as many add little.",
        paper="saturation",
        needs=("trees-t0",),
        decide=sweeps.rows_add_little("trees-t0", "dflash-best_first", 64, 0.1),
        drafters=_BLOCK,
        scale=_SHORT,
    ),
    Claim(
        id="bastion/figure-4/fixed-budgets-peak",
        says="The speed of fixed budgets has a peak inside their range.",
        paper="in every workload",
        needs=("sweep-t0",),
        decide=sweeps.peaks("sweep-t0"),
        drafters=_BLOCK,
        scale="No: it needs a verification that costs more with more rows, which a CPU's does.",
    ),
    Claim(
        id="bastion/figure-4/peak-moves-with-workload",
        says="The best fixed budget differs between workloads.",
        paper="by data set",
        needs=("sweep-t0",),
        decide=sweeps.peak_moves("sweep-t0"),
        drafters=_BLOCK,
        scale=_CPU,
    ),
    Claim(
        id="bastion/figure-4/tracks-the-best-budget",
        says="The controller reaches the best fixed budget of each workload.",
        paper="at the peak or above",
        needs=("sweep-t0",),
        decide=sweeps.tracks("sweep-t0", STATIC, 0.97),
        drafters=_BLOCK,
        scale=_CPU,
    ),
    Claim(
        id="bastion/figure-4/beats-a-fixed-64",
        says="The controller is faster than a fixed budget of the most rows that it may take.",
        paper="by adapting each round",
        needs=("sweep-t0",),
        decide=sweeps.faster_than_largest("sweep-t0", STATIC),
        drafters=_BLOCK,
        scale="No: a CPU punishes idle rows more than a GPU does.",
    ),
)
