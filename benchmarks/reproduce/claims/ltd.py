"""The claims of Learning to Draft about speed, rewards and turns."""

from __future__ import annotations

from benchmarks.reproduce.claim import Claim
from benchmarks.reproduce.decide import learned
from benchmarks.reproduce.measure_ltd import RULES

SHORT = "Yes: mini's rounds offer an oracle 37 %, but little of it shows before verification."
CPU = "Yes: mini has six layers, so a policy's networks take a share that an 8B target hides."
_EAGLE = ("eagle3",)


def on_eagle3(place: str, says: str, paper: str, needs: str, decide, scale: str = SHORT) -> Claim:
    """Make a claim about policies on EAGLE-3 that one measurement decides."""
    return Claim(
        id=f"ltd/{place}",
        says=says,
        paper=paper,
        needs=(needs,),
        decide=decide,
        drafters=_EAGLE,
        scale=scale,
    )


CLAIMS = (
    on_eagle3(
        "table-1/beats-grid-search",
        "Both policies are faster than the best constant, by modelled time.",
        "3.92 against 3.83 (Llama), 2.47 against 1.81 (Qwen3-32B)",
        "ltd-turns",
        learned.over_static("ltd-turns", "turns"),
    ),
    on_eagle3(
        "table-1/beats-grid-search-by-the-clock",
        "They are faster than the best constant by the clock.",
        "3.92 against 3.83",
        "ltd-clock-t0",
        learned.faster_by_the_clock("ltd-clock-t0"),
        CPU,
    ),
    on_eagle3(
        "table-1/grid-search-beats-rules",
        "The best constant is faster than DDD, SVIP and GammaTune.",
        "3.83 against 3.57, 3.57, 3.80",
        "ltd-clock-t0",
        learned.constant_beats_rules("ltd-clock-t0", tuple(RULES)),
    ),
    on_eagle3(
        "table-1/fastest-of-all",
        "The trained policies are the fastest of all.",
        "first in every column",
        "ltd-clock-t0",
        learned.fastest("ltd-clock-t0"),
        CPU,
    ),
    on_eagle3(
        "table-1/faster-without-more-tokens",
        "They are faster with no more tokens a round than the best constant.",
        "6.56 against 6.69",
        "ltd-turns",
        learned.faster_with_fewer_tokens("ltd-turns", "turns"),
    ),
    on_eagle3(
        "table-2/throughput-beats-acceptance",
        "Throughput as the reward beats accepted tokens.",
        "4.13 against 3.59",
        "ltd-rewards",
        learned.first_beats("ltd-rewards", "acceptance"),
    ),
    on_eagle3(
        "table-2/throughput-beats-time",
        "It beats time.",
        "4.13 against 3.45",
        "ltd-rewards",
        learned.first_beats("ltd-rewards", "time"),
    ),
    on_eagle3(
        "table-2/time-is-worst",
        "Time is the worst reward of the size policy.",
        "3.45 against 3.59",
        "ltd-rewards",
        learned.way_beats("ltd-rewards", "acceptance", "time"),
    ),
    on_eagle3(
        "table-4/both-beat-size",
        "Both policies beat the size policy alone.",
        "4.32 against 4.13",
        "ltd-turns",
        learned.first_beats("ltd-turns", "size alone:size"),
    ),
    on_eagle3(
        "table-4/both-beat-depth",
        "Both policies beat the depth policy alone.",
        "4.32 against 4.29",
        "ltd-turns",
        learned.first_beats("ltd-turns", "depth alone:depth"),
    ),
    on_eagle3(
        "table-4/depth-matters-more",
        "The depth policy alone beats the size policy alone.",
        "4.29 against 4.13",
        "ltd-turns",
        learned.way_beats("ltd-turns", "depth alone:depth", "size alone:size"),
    ),
    on_eagle3(
        "table-4/turns-beat-apart",
        "Training in turns beats training apart.",
        "4.32 against 4.20",
        "ltd-turns",
        learned.first_beats("ltd-turns", "apart"),
    ),
    on_eagle3(
        "table-5/beats-grid-search-sampled",
        "The policies are faster than the best constant at temperature 1.",
        "3.62 against 3.50 (Vicuna)",
        "ltd-clock-t1",
        learned.faster_by_the_clock("ltd-clock-t1"),
        CPU,
    ),
    on_eagle3(
        "table-5/fastest-sampled",
        "They are the fastest of all at temperature 1.",
        "3.01, with SpecDec++",
        "ltd-clock-t1",
        learned.fastest("ltd-clock-t1"),
        "Yes: at temperature 1 mini's drafters do not pay at all.",
    ),
)
