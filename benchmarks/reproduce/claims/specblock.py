"""The claims of SpecBlock's tables 1 to 3 and figures 5 and 6."""

from __future__ import annotations

from benchmarks.reproduce.claim import Claim
from benchmarks.reproduce.decide import decodes, devices, phases, recipes, trees
from benchmarks.reproduce.measure_decodes import (
    EAGLE,
    FALCON,
    MEDUSA,
    PARALLEL,
    SMALL_MODEL,
    SPECBLOCK,
)

_BOTH = ("specblock", "eagle3")
_ALL = (*_BOTH, "medusa", "parallelspec", "falcon", "draft_model")
_CPU = (
    "Yes: on a CPU a verified row is never free, and a pass of the drafter costs little beside it."
)
_TRAINED = "Yes: mini's drafters were trained for minutes, the paper's for 3,000 GPU hours."
_WHOLE = recipes.recipe(variant="paper")
_TREES = ("chain@8", "by class@16", "by class@64")


def _component(variant: str, what: str, figure: str) -> Claim:
    return Claim(
        id=f"specblock/table-2/{what}",
        says=f"Without {variant.removeprefix('no-').replace('-', ' ')}, fewer tokens are accepted.",
        paper=figure,
        needs=("components",),
        decide=recipes.trained_better(
            "components", _WHOLE, recipes.recipe(variant=f"paper-{variant}"), *_TREES
        ),
        scale="Yes: the trainings are short, and a mask of valid prefixes starves late slots at first.",
    )


CLAIMS = (
    Claim(
        id="specblock/table-1/faster-than-eagle3",
        says="SpecBlock is faster than EAGLE-3 at temperature 0.",
        paper="3.21 against 2.92 times plain decoding",
        needs=("drafters-t0",),
        decide=decodes.faster("drafters-t0", SPECBLOCK, EAGLE),
        drafters=_BOTH,
        scale=_CPU,
    ),
    Claim(
        id="specblock/table-1/faster-than-eagle3-sampled",
        says="SpecBlock is faster than EAGLE-3 at temperature 1.",
        paper="2.20 against 1.94 times plain decoding",
        needs=("drafters-t1",),
        decide=decodes.faster("drafters-t1", SPECBLOCK, EAGLE),
        drafters=_BOTH,
        scale=_CPU,
    ),
    Claim(
        id="specblock/table-1/half-the-share-of-drafting",
        says="Drafting takes about half the share of a round that it takes EAGLE-3.",
        paper="16 % against 31 %",
        needs=("drafters-t0",),
        decide=phases.share_is_less("drafters-t0", SPECBLOCK, EAGLE, 0.65),
        drafters=_BOTH,
        scale=_CPU,
    ),
    Claim(
        id="specblock/table-1/cheaper-drafts",
        says="A tree of SpecBlock takes less time to draft than one of EAGLE-3.",
        paper="7 against 17 ms",
        needs=("drafters-t0",),
        decide=phases.drafting_costs_less("drafters-t0", SPECBLOCK, EAGLE),
        drafters=_BOTH,
        scale=_CPU,
    ),
    Claim(
        id="specblock/table-1/eagle3-accepts-more",
        says="EAGLE-3 accepts more tokens a round than SpecBlock, which is faster all the same.",
        paper="5.89 against 4.41",
        needs=("drafters-t0",),
        decide=decodes.accepts_more("drafters-t0", EAGLE, SPECBLOCK),
        drafters=_BOTH,
        scale=_TRAINED,
    ),
    Claim(
        id="specblock/table-1/order-of-acceptance",
        says="By tokens a round: EAGLE-3, SpecBlock, Falcon, ParallelSpec, Medusa.",
        paper="5.89 > 4.41 > 3.95 > 2.87 > 2.35",
        needs=("drafters-t0",),
        decide=decodes.accepts_in_order(
            "drafters-t0", (EAGLE, SPECBLOCK, FALCON, PARALLEL, MEDUSA)
        ),
        drafters=_ALL,
        scale=_TRAINED,
    ),
    Claim(
        id="specblock/table-1/order-of-speed",
        says="By speed: SpecBlock, EAGLE-3, Falcon, ParallelSpec, Medusa, a small model.",
        paper="3.21 > 2.92 > 2.48 > 2.10 > 1.73 > 1.27",
        needs=("drafters-t0",),
        decide=decodes.faster_in_order(
            "drafters-t0", (SPECBLOCK, EAGLE, FALCON, PARALLEL, MEDUSA, SMALL_MODEL)
        ),
        drafters=_ALL,
        scale=_CPU,
    ),
    Claim(
        id="specblock/table-1/sampling-lowers-acceptance",
        says="At temperature 1 every drafter accepts less, and the order stays.",
        paper="SpecBlock 4.41 to 3.73, EAGLE-3 5.89 to 4.67",
        needs=("drafters-t0", "drafters-t1"),
        decide=decodes.lower_when_sampled("drafters-t0", "drafters-t1", (EAGLE, SPECBLOCK)),
        drafters=_BOTH,
        scale="No: it follows from the entropy of what is sampled.",
    ),
    Claim(
        id="specblock/table-1/share-falls-with-target",
        says="The share of drafting falls with a larger target.",
        paper="16 % at 8B (Llama), 14 % (Qwen3), 11 % at 32B",
        needs=("plans",),
        decide=devices.drafting_share_falls("qwen3-8b", "qwen3-32b", "a100"),
        scale="No: the roofline has the published sizes.",
    ),
    _component("no-broadcast", "prefix-broadcast", "3.21 and 4.41; without 2.99 and 4.13"),
    _component("no-shift", "layer-shift", "3.21 and 4.41; without 2.95 and 4.02"),
    _component("no-valid-prefix", "valid-prefix", "3.21 and 4.41; without 3.06 and 4.23"),
    Claim(
        id="specblock/table-2/rank-branching",
        says="Branching by the rank head accepts more than four branches everywhere.",
        paper="4.41 against 4.25",
        needs=("branching",),
        decide=trees.way_beats("branching", "by class"),
        drafters=("specblock",),
        scale="Yes: both trees are cut to the best rows of a pool.",
    ),
    Claim(
        id="specblock/table-3/extremes-are-easiest",
        says="The rank head knows its first and last class best.",
        paper="F1 .81, .50, .46, .82",
        needs=("components",),
        decide=recipes.extremes_are_easiest("components", _WHOLE),
        scale="Yes: the head has seen few blocks.",
    ),
    Claim(
        id="specblock/table-3/first-class-is-most-frequent",
        says="At most positions of valid prefixes the true token is first.",
        paper="75 %, 15 %, 4 %, 6 %",
        needs=("branching",),
        decide=trees.first_class_is_most_frequent(0.5),
        drafters=("specblock",),
        scale="Yes: it is the accuracy of a drafter that was trained for minutes.",
    ),
    Claim(
        id="specblock/figure-5/boundary-recovers",
        says="Where a new block begins, acceptance recovers.",
        paper="α rises from slot 4 to slot 5",
        needs=("branching",),
        decide=trees.recovers(4),
        drafters=("specblock",),
        scale="Yes, either way: the second block needs training of its own.",
    ),
    Claim(
        id="specblock/figure-5/later-blocks-accept",
        says="The last slot of the second block is still accepted in half of the cases.",
        paper="α above .80 at slot 1, .54 (Llama) and .37 (Qwen3) at slot 8",
        needs=("branching",),
        decide=trees.slot_accepts(8, 0.5),
        drafters=("specblock",),
        scale=_TRAINED,
    ),
    Claim(
        id="specblock/section-4/third-block",
        says="A third block accepts more with a drafter that was trained with two.",
        paper="works with M = 3",
        needs=("branching",),
        decide=trees.way_beats("blocks", "M = 3"),
        drafters=("specblock",),
        scale="Yes: rounds that accept eight tokens are rare.",
    ),
    Claim(
        id="specblock/section-4/fourth-block",
        says="A fourth block accepts no less.",
        paper="M from 3 to 4",
        needs=("branching",),
        decide=trees.way_beats("blocks", "M = 4", 0.98),
        drafters=("specblock",),
        scale="Yes: rounds that accept twelve tokens are rarer still.",
    ),
    Claim(
        id="specblock/section-4/width-tables",
        says="The widths [2, 4, 10, 0] and [2, 4, 6, 4] accept alike.",
        paper="either one by bucket",
        needs=("branching",),
        decide=trees.ways_are_alike("widths", "2,4,10,0", 0.05),
        drafters=("specblock",),
        scale="Yes: the best widths depend on the drafter.",
    ),
    Claim(
        id="specblock/table-1/faster-at-the-papers-acceptance",
        says="With the tokens a round that the paper has, SpecBlock's rounds are faster.",
        paper="3.21 against 2.92 at 4.41 against 5.89 tokens a round",
        needs=("latency",),
        decide=phases.faster_at_equal_acceptance("specblock", "eagle3"),
        scale="Yes: on a CPU a verified row is never free; --scale full times an 8B target on a GPU.",
    ),
    Claim(
        id="specblock/table-1/half-the-share-at-equal-shapes",
        says="At published shapes drafting takes about half the share that it takes EAGLE-3.",
        paper="16 % against 31 %",
        needs=("latency",),
        decide=phases.share_is_less_at_equal_shapes("specblock", "eagle3", 0.65),
        scale="Yes: on a CPU a verified row is never free; --scale full times an 8B target on a GPU.",
    ),
)
