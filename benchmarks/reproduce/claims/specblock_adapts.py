"""The claims of SpecBlock's adaptation: tables 1, 2, 4 and 5, figure 7, section 3.4."""

from __future__ import annotations

from benchmarks.reproduce.claim import Claim
from benchmarks.reproduce.decide import streams

_SMALL = "Yes: streams are short, so few updates are made, and mini's drafter has seen all domains."
_BANDIT, _OSD, _NEVER = "bandit-paper", "osd", "never"

CLAIMS = (
    Claim(
        id="specblock/table-1/adaptation-gains",
        says="A drafter that learns while it serves is faster than one that does not.",
        paper="Llama 3.07 to 3.23 on the same tasks, Qwen3-8B 2.42 to 2.56",
        needs=("passes",),
        decide=streams.learns_faster("passes", _BANDIT, _NEVER),
        drafters=("specblock",),
        scale=_SMALL,
    ),
    Claim(
        id="specblock/table-1/bandit-beats-osd",
        says="The cost-aware bandit is faster than updates at a fixed pace (OSD).",
        paper="3.24 against 3.14",
        needs=("passes",),
        decide=streams.learns_faster("passes", _BANDIT, _OSD),
        drafters=("specblock",),
        scale=_SMALL,
    ),
    Claim(
        id="specblock/table-1/adaptation-gains-sampled",
        says="Adaptation gains at temperature 1 too.",
        paper="Qwen3-8B 2.18 to 2.33",
        needs=("passes-t1",),
        decide=streams.learns_faster("passes-t1", _BANDIT, _NEVER),
        drafters=("specblock",),
        scale=_SMALL,
    ),
    Claim(
        id="specblock/table-2/bandit",
        says="Choosing the updates by the bandit is faster than making all of them.",
        paper="3.24; without the bandit 3.14",
        needs=("passes",),
        decide=streams.learns_faster("passes", _BANDIT, "always-full"),
        drafters=("specblock",),
        scale=_SMALL,
    ),
    Claim(
        id="specblock/table-2/head-only",
        says="With updates of the head alone the bandit is faster than without.",
        paper="3.24; without 3.00",
        needs=("passes",),
        decide=streams.learns_faster("passes", _BANDIT, "bandit-paper-full"),
        drafters=("specblock",),
        scale=_SMALL,
    ),
    Claim(
        id="specblock/section-3/head-is-ten-times-cheaper",
        says="An update of the head costs at least ten times less than one of all weights.",
        paper="more than 10 times",
        needs=("updates",),
        decide=streams.head_is_cheaper(10.0),
        drafters=("specblock",),
        scale="Yes: mini's head is half of its drafter; in an 8B one it is a third, by the roofline.",
    ),
    Claim(
        id="specblock/table-4/one-device-is-enough",
        says="A second device that trains makes little difference.",
        paper="one GPU about as fast as two",
        needs=("passes",),
        decide=streams.two_devices_gain_little("passes", _BANDIT, 0.03),
        drafters=("specblock",),
        scale="No: seconds are those of an 8B model on an H100, by the roofline.",
    ),
    Claim(
        id="specblock/table-5/gains-grow-with-passes",
        says="Gains grow when the same stream comes again.",
        paper="1, 2, 4, 6, 8 passes",
        needs=("passes",),
        decide=streams.gain_grows("passes", _BANDIT),
        drafters=("specblock",),
        scale=_SMALL,
    ),
    Claim(
        id="specblock/table-5/single-domains-gain-more",
        says="A stream of one domain after the other gains more than a mixed one.",
        paper="single-domain gains above mixed",
        needs=("blocks", "passes"),
        decide=streams.gains_more_than("blocks", "passes", _BANDIT),
        drafters=("specblock",),
        scale=_SMALL,
    ),
    Claim(
        id="specblock/figure-7/gap-widens-along-a-stream",
        says="Along the text of one domain, the gain over a static drafter grows.",
        paper="curves over the stream",
        needs=("blocks",),
        decide=streams.gain_grows_within("blocks", _BANDIT),
        drafters=("specblock",),
        scale=_SMALL,
    ),
)
