"""The claims of BASTION about its trees, its cost model and other devices."""

from __future__ import annotations

from benchmarks.reproduce.claim import Claim
from benchmarks.reproduce.decide import costs, devices, sweeps
from benchmarks.reproduce.measure_decodes import (
    ALL_SIZES,
    BOTH,
    FIRST_DECREASE,
    RUNNING,
    STATIC,
)

_BLOCK = ("dflash",)
_MODEL = "No: rounds take what the roofline says of published sizes."
_COSTS = "Yes: the paper's cost model is a GPU's; a CPU has another curve."

CLAIMS = (
    Claim(
        id="bastion/figure-5/peak-moves-with-gpu",
        says="The best fixed budget differs between GPUs.",
        paper="A100 and H100",
        needs=("batches-a100", "batches-h100"),
        decide=devices.best_budget_differs(
            {"A100": "batches-a100", "H100": "batches-h100"}, (1, 4)
        ),
        drafters=("jetspec",),
        scale=_MODEL,
    ),
    Claim(
        id="bastion/figure-5/peak-moves-with-target",
        says="The best fixed budget differs between targets.",
        paper="4B and 8B",
        needs=("batches-h100", "batches-qwen3-32b"),
        decide=devices.best_budget_differs(
            {"8B": "batches-h100", "32B": "batches-qwen3-32b"}, (1, 4)
        ),
        drafters=("jetspec",),
        scale=_MODEL,
    ),
    Claim(
        id="bastion/figure-6/pearson",
        says="Sums of path probabilities predict the committed tokens: Pearson at least .7.",
        paper=".79 to .82",
        needs=("sweep-t0",),
        decide=sweeps.correlates("sweep-t0", "pearson", 0.7),
        drafters=_BLOCK,
        scale="Yes: a drafter that was trained for minutes is less well calibrated.",
    ),
    Claim(
        id="bastion/figure-6/spearman",
        says="Their ranks agree: Spearman at least .65.",
        paper=".72 to .80",
        needs=("sweep-t0",),
        decide=sweeps.correlates("sweep-t0", "spearman", 0.65),
        drafters=_BLOCK,
        scale="Yes: a drafter that was trained for minutes is less well calibrated.",
    ),
    Claim(
        id="bastion/figure-8/best-first-beats-beam",
        says="Best-first trees accept more than beams of as many rows.",
        paper="7.0 % (4B) and 6.1 % (8B) at 61 rows",
        needs=("sweep-t0",),
        decide=sweeps.beats_beam("sweep-t0"),
        drafters=_BLOCK,
        scale="No: best-first is optimal for the drafter's own probabilities.",
    ),
    Claim(
        id="bastion/figure-8/best-first-is-faster",
        says="They are faster too.",
        paper="figure 8b",
        needs=("sweep-t0",),
        decide=sweeps.beats_beam("sweep-t0", "speed_ratio"),
        drafters=_BLOCK,
        scale="Yes: beams run as many rows, and their own selection costs little on a CPU.",
    ),
    Claim(
        id="bastion/figure-9/calibration-cuts-the-error",
        says="Calibration cuts the error of predicted verification by at least four fifths.",
        paper="87 to 92 % (29.2 to 2.3 ms)",
        needs=("calibration",),
        decide=costs.fit_cuts_the_error(0.8),
        drafters=_BLOCK,
        scale=_COSTS,
    ),
    Claim(
        id="bastion/figure-9/bare-roofline-underestimates",
        says="The bare roofline underestimates verification.",
        paper="8.7 against 22 ms at 32 rows",
        needs=("calibration",),
        decide=costs.bare_roofline_underestimates(),
        drafters=_BLOCK,
        scale=_COSTS,
    ),
    Claim(
        id="bastion/figure-9/static-is-robust",
        says="Calibrated costs lose at most 3 % to the same with a running correction.",
        paper="within .06 times of each other",
        needs=("sweep-t0",),
        decide=sweeps.rule_beats("sweep-t0", STATIC, BOTH),
        drafters=_BLOCK,
        scale="Yes: with --policy +ema the host waits for every round, which costs a small model more.",
    ),
    Claim(
        id="bastion/figure-9/running-mean-is-fragile",
        says="A running mean on the bare roofline is slower than calibrated costs.",
        paper="+.28, +.18 and -12.7 %",
        needs=("sweep-t0",),
        decide=sweeps.running_mean_is_fragile("sweep-t0", RUNNING, STATIC),
        drafters=_BLOCK,
        scale="Yes: the host waits for every round, which costs a small model more.",
    ),
    Claim(
        id="bastion/section-4/times-are-predicted",
        says="The cost table predicts the times of decodes: median error below 15 %.",
        paper="2.3 ms of some 30",
        needs=("sweep-t0",),
        decide=sweeps.predicts("sweep-t0", STATIC, 0.15),
        drafters=_BLOCK,
        scale=_COSTS,
    ),
    Claim(
        id="bastion/proposition-2.4/first-decrease-is-enough",
        says="Stopping at the first decrease is as fast as trying all sizes.",
        paper="proved for convex costs",
        needs=("sweep-t0",),
        decide=sweeps.rule_beats("sweep-t0", FIRST_DECREASE, ALL_SIZES),
        drafters=_BLOCK,
        scale="Yes: costs of a CPU are a staircase, and `best` corrects its scores besides.",
    ),
    Claim(
        id="bastion/section-4/long-context",
        says="Gains last at long contexts.",
        paper="LongBench",
        waits="no set of long prompts is at hand, and mini has 2,048 positions",
        scale="Yes.",
    ),
)
