"""The claims of Learning to Draft about observations, networks, rounds and transfer."""

from __future__ import annotations

from benchmarks.reproduce.claim import Claim
from benchmarks.reproduce.claims.ltd import CPU, SHORT, on_eagle3
from benchmarks.reproduce.decide import learned


def _waiting(place: str, says: str, paper: str, waits: str, scale: str = SHORT) -> Claim:
    return Claim(id=f"ltd/{place}", says=says, paper=paper, waits=waits, scale=scale)


CLAIMS = (
    on_eagle3(
        "table-6/depth-helps",
        "The size policy is better if it sees the depth.",
        "4.13 with it, 4.05 without",
        "ltd-observes",
        learned.first_beats("ltd-observes", "P+L"),
    ),
    on_eagle3(
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
        "records hold no hidden states",
    ),
    _waiting(
        "table-6/entropy-does-not-help",
        "The entropy does not help it.",
        "4.11 against 4.13",
        "records hold no entropies",
    ),
    on_eagle3(
        "table-8/later-turns-saturate",
        "The last two turns add little to the second one.",
        "3.90, 3.92, 3.92",
        "ltd-turns",
        learned.alike("ltd-turns", "turns", "second", 0.015),
    ),
    on_eagle3(
        "table-9/overhead-is-small",
        "Both policies take less than 1.5 % of the time.",
        "1.39 % (Llama), 1.22 % (Vicuna)",
        "ltd-clock-t0",
        learned.overhead_below("ltd-clock-t0", 0.015),
        CPU,
    ),
    on_eagle3(
        "table-10/two-layers-beat-one",
        "Two layers of the size policy beat one.",
        "3.92 against 3.86",
        "ltd-networks",
        learned.way_beats("ltd-networks", "2", "1"),
    ),
    on_eagle3(
        "table-10/three-layers-are-no-better",
        "Three layers are no better than two.",
        "3.93 against 3.92",
        "ltd-networks",
        learned.alike("ltd-networks", "3", "2", 0.015),
    ),
    Claim(
        id="ltd/table-11/griffin",
        says="The policies gain on GRIFFIN too.",
        paper="2.81 against 2.78",
        needs=("ltd-griffin",),
        decide=learned.over_static("ltd-griffin", "turns"),
        drafters=("griffin",),
        scale=SHORT,
    ),
    on_eagle3(
        "figure-2/drafting-falls",
        "With both policies a token takes less drafting than with a constant.",
        "shares of drafting and verifying",
        "ltd-turns",
        learned.part_falls("ltd-turns", "turns", "draft_ms"),
    ),
    on_eagle3(
        "figure-2/verification-falls",
        "It takes less verification.",
        "shares of drafting and verifying",
        "ltd-turns",
        learned.part_falls("ltd-turns", "turns", "verify_ms"),
    ),
    on_eagle3(
        "figure-6/easy-rounds-are-deep",
        "Rounds that commit many tokens have deeper trees than those that commit few.",
        "depth by accepted length",
        "ltd-turns",
        learned.easy_exceeds_hard("ltd-turns", "turns", "steps"),
    ),
    on_eagle3(
        "figure-6/easy-rounds-are-large",
        "They have more rows.",
        "43 % of easy rounds verify more than 60",
        "ltd-turns",
        learned.easy_exceeds_hard("ltd-turns", "turns", "rows"),
    ),
    on_eagle3(
        "figure-6/hard-rounds-are-shallow",
        "Most rounds that commit few tokens stop before a depth of 6.",
        "depth below 6",
        "ltd-turns",
        learned.hard_rounds_are("ltd-turns", "turns", "few_steps", 0.5),
    ),
    on_eagle3(
        "figure-6/hard-rounds-are-wide",
        "Most of them verify more than 60 tokens.",
        "more than 60",
        "ltd-turns",
        learned.hard_rounds_are("ltd-turns", "turns", "many_rows", 0.5),
        "Yes: on a CPU 60 rows cost several times as much as 20.",
    ),
    on_eagle3(
        "figure-7/on-most-domains",
        "The policies are faster in at least nine tenths of the domains of the prompts.",
        "54 of 57 subjects of MMLU",
        "ltd-turns",
        learned.faster_on_most("ltd-turns", "turns", 0.9),
        "Yes: these prompts have few domains; --prompts hub:cais/mmlu has 57.",
    ),
    on_eagle3(
        "section-5/code-alone-transfers",
        "Policies trained on code alone beat the constant on other domains.",
        "trained on HumanEval",
        "ltd-code",
        learned.over_static("ltd-code", "turns"),
    ),
    _waiting(
        "section-5/larger-targets-gain-more",
        "The gain is larger on larger targets.",
        "2.3 % at 8B, 36.4 % at 32B",
        "one target with trained policies is at hand",
        "Yes: sizes differ by four orders of magnitude.",
    ),
)
