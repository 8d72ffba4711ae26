"""The claims of Learning to Draft."""

from __future__ import annotations

from benchmarks.reproduce.claim import Claim
from benchmarks.reproduce.decide import learned

_SHORT = "Yes: mini's rounds offer an oracle 37 %, but little of it shows before verification."
_CPU = "Yes: mini has six layers, so a policy's networks take a share that an 8B target hides."
_EAGLE = ("eagle3",)
_RULES = ("ddd-ltd", "svip-ltd", "gammatune-ltd")


def _claim(place: str, says: str, paper: str, needs: str, decide, scale: str = _SHORT) -> Claim:
    return Claim(
        id=f"ltd/{place}",
        says=says,
        paper=paper,
        needs=(needs,),
        decide=decide,
        drafters=_EAGLE,
        scale=scale,
    )


def _waiting(place: str, says: str, paper: str, waits: str, scale: str = _SHORT) -> Claim:
    return Claim(id=f"ltd/{place}", says=says, paper=paper, waits=waits, scale=scale)


CLAIMS = (
    _claim(
        "table-1/beats-grid-search",
        "Both policies are faster than the best constant, by modelled time.",
        "3.92 against 3.83 (Llama), 2.47 against 1.81 (Qwen3-32B)",
        "ltd-turns",
        learned.over_static("ltd-turns", "turns"),
    ),
    _claim(
        "table-1/beats-grid-search-by-the-clock",
        "They are faster than the best constant by the clock.",
        "3.92 against 3.83",
        "ltd-clock-t0",
        learned.faster_by_the_clock("ltd-clock-t0"),
        _CPU,
    ),
    _claim(
        "table-1/grid-search-beats-rules",
        "The best constant is faster than DDD, SVIP and GammaTune.",
        "3.83 against 3.57, 3.57, 3.80",
        "ltd-clock-t0",
        learned.constant_beats_rules("ltd-clock-t0", _RULES),
    ),
    _claim(
        "table-1/fastest-of-all",
        "The trained policies are the fastest of all.",
        "first in every column",
        "ltd-clock-t0",
        learned.fastest("ltd-clock-t0"),
        _CPU,
    ),
    _claim(
        "table-1/faster-without-more-tokens",
        "They are faster with no more tokens a round than the best constant.",
        "6.56 against 6.69",
        "ltd-turns",
        learned.faster_with_fewer_tokens("ltd-turns", "turns"),
    ),
    _claim(
        "table-2/throughput-beats-acceptance",
        "Throughput as the reward beats accepted tokens.",
        "4.13 against 3.59",
        "ltd-rewards",
        learned.first_beats("ltd-rewards", "acceptance"),
    ),
    _claim(
        "table-2/throughput-beats-time",
        "It beats time.",
        "4.13 against 3.45",
        "ltd-rewards",
        learned.first_beats("ltd-rewards", "time"),
    ),
    _claim(
        "table-2/time-is-worst",
        "Time is the worst reward of the size policy.",
        "3.45 against 3.59",
        "ltd-rewards",
        learned.way_beats("ltd-rewards", "acceptance", "time"),
    ),
    _claim(
        "table-4/both-beat-size",
        "Both policies beat the size policy alone.",
        "4.32 against 4.13",
        "ltd-turns",
        learned.first_beats("ltd-turns", "size alone:size"),
    ),
    _claim(
        "table-4/both-beat-depth",
        "Both policies beat the depth policy alone.",
        "4.32 against 4.29",
        "ltd-turns",
        learned.first_beats("ltd-turns", "depth alone:depth"),
    ),
    _claim(
        "table-4/depth-matters-more",
        "The depth policy alone beats the size policy alone.",
        "4.29 against 4.13",
        "ltd-turns",
        learned.way_beats("ltd-turns", "depth alone:depth", "size alone:size"),
    ),
    _claim(
        "table-4/turns-beat-apart",
        "Training in turns beats training apart.",
        "4.32 against 4.20",
        "ltd-turns",
        learned.first_beats("ltd-turns", "apart"),
    ),
    _claim(
        "table-5/beats-grid-search-sampled",
        "The policies are faster than the best constant at temperature 1.",
        "3.62 against 3.50 (Vicuna)",
        "ltd-clock-t1",
        learned.faster_by_the_clock("ltd-clock-t1"),
        _CPU,
    ),
    _claim(
        "table-5/fastest-sampled",
        "They are the fastest of all at temperature 1.",
        "3.01, with SpecDec++",
        "ltd-clock-t1",
        learned.fastest("ltd-clock-t1"),
        "Yes: at temperature 1 mini's drafters do not pay at all.",
    ),
    _claim(
        "table-6/depth-helps",
        "The size policy is better if it sees the depth.",
        "4.13 with it, 4.05 without",
        "ltd-observes",
        learned.first_beats("ltd-observes", "P+L"),
    ),
    _claim(
        "table-6/length-helps",
        "It is better if it sees the length.",
        "4.13 with it, 4.07 without",
        "ltd-observes",
        learned.first_beats("ltd-observes", "P+D"),
        "Yes: contexts have at most 350 tokens.",
    ),
    _waiting(
        "table-6/hidden-state-does-not-help",
        "The drafter's hidden state does not help it.",
        "4.10 against 4.13",
        "records without hidden states; the observation is being built",
    ),
    _waiting(
        "table-6/entropy-does-not-help",
        "The entropy does not help it.",
        "4.11 against 4.13",
        "records without entropy; the observation is being built",
    ),
    _claim(
        "table-8/later-turns-saturate",
        "The last two turns add little to the second one.",
        "3.90, 3.92, 3.92",
        "ltd-turns",
        learned.alike("ltd-turns", "turns", "second", 0.015),
    ),
    _claim(
        "table-9/overhead-is-small",
        "Both policies take less than 1.5 % of the time.",
        "1.39 % (Llama), 1.22 % (Vicuna)",
        "ltd-clock-t0",
        learned.overhead_below("ltd-clock-t0", 0.015),
        _CPU,
    ),
    _claim(
        "table-10/two-layers-beat-one",
        "Two layers of the size policy beat one.",
        "3.92 against 3.86",
        "ltd-networks",
        learned.way_beats("ltd-networks", "2", "1"),
    ),
    _claim(
        "table-10/three-layers-are-no-better",
        "Three layers are no better than two.",
        "3.93 against 3.92",
        "ltd-networks",
        learned.alike("ltd-networks", "3", "2", 0.015),
    ),
    _waiting(
        "table-11/griffin",
        "The policies gain on GRIFFIN too.",
        "2.81 against 2.78",
        "GRIFFIN is being built",
    ),
    _waiting(
        "figure-2/both-times-fall",
        "Both drafting and verification take less time than with a constant.",
        "shares of drafting and verifying",
        "tables of the shares are being built",
    ),
    _waiting(
        "figure-6/easy-rounds-are-deep",
        "Easy rounds get deep and large trees, hard rounds shallow and wide ones.",
        "43 % of easy rounds use more than 60 rows; hard ones a depth below 6",
        "the table of depth and size by accepted length is being built",
    ),
    _waiting(
        "figure-7/mmlu",
        "The policies are faster on 54 of 57 subjects of MMLU.",
        "54 of 57, 5 % on average",
        "no MMLU is at hand here: give it with --prompts hub:cais/mmlu",
    ),
    _waiting(
        "section-5/code-alone-transfers",
        "Policies trained on code alone gain on other domains.",
        "trained on HumanEval",
        "a record of one domain is being built",
    ),
    _waiting(
        "section-5/larger-targets-gain-more",
        "The gain is larger on larger targets.",
        "2.3 % at 8B, 36.4 % at 32B",
        "one target with trained policies is at hand",
        "Yes: sizes differ by four orders of magnitude.",
    ),
)
