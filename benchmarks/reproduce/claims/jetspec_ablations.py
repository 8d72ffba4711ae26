"""The claims of JetSpec's ablations: training (tables 3 to 7), scores, batches, costs."""

from __future__ import annotations

from benchmarks.reproduce.claim import Claim
from benchmarks.reproduce.decide import decodes, devices, phases, recipes
from benchmarks.reproduce.decide.recipes import recipe
from benchmarks.reproduce.measure_decodes import BLOCKS

_SHORT = "Yes: trainings take minutes, and early slots decide the result."
_NO = "No: it concerns the order of paths alone."
_MODEL = "No: rounds take what the roofline says of an 8B model; acceptance is the small model's."
_TREES = ("tree@8", "tree@64")
_PLAIN = dict(data="regenerated", block=None, rate=None)
_HEAD = dict(kind="jetspec", gamma=None, **_PLAIN)
_FKL, _SFT, _RKL = (recipe(**_HEAD, loss=loss) for loss in ("fkl", "ce", "rkl"))
_CAUSAL_7 = recipe(kind="jetspec", gamma=7.0, loss="fkl", **_PLAIN)
_DIFFUSION = recipe(kind="dflash", gamma=None, loss="fkl", **_PLAIN)
_DIFFUSION_7 = recipe(kind="dflash", gamma=7.0, loss="fkl", **_PLAIN)
_CORPUS = recipe(kind="jetspec", gamma=None, loss="fkl", data="corpus", block=None, rate=None)
_RATES = (3e-4, 6e-4, 1e-3)
_BLOCK_16 = dict(kind="dflash", loss="fkl", data="regenerated", block=16)


def _score(name: str, method: str, says: str, paper: str, bound: float, alike: bool) -> Claim:
    pairs = [(method.format(rows), f"jetspec-best_first@{rows}") for rows in (16, 64)]
    decide = (
        decodes.accepts_alike("scores", pairs, bound)
        if alike
        else decodes.all_below("scores", pairs, bound)
    )
    return Claim(
        id=f"jetspec/table-10/{name}",
        says=says,
        paper=paper,
        needs=("scores",),
        decide=decide,
        drafters=("jetspec",),
        scale=_NO,
    )


CLAIMS = (
    Claim(
        id="jetspec/table-3/learning-rate-plateau",
        says="Around the best learning rate a factor of two hardly matters.",
        paper="a plateau among five rates, which its text does not name",
        needs=("rates",),
        decide=recipes.plateau(
            "rates", [recipe(**_HEAD | {"rate": r}) for r in _RATES], 0.05, "expand@64"
        ),
        scale="Yes: short trainings want large rates.",
    ),
    Claim(
        id="jetspec/table-4/forward-kl-equals-sft",
        says="Forward KL and cross-entropy accept alike.",
        paper="a tie",
        needs=("objective",),
        decide=recipes.trained_alike("objective", _FKL, _SFT, 0.05, *_TREES),
        scale=_SHORT,
    ),
    Claim(
        id="jetspec/table-4/reverse-kl-is-worst",
        says="Reverse KL accepts much less.",
        paper="6.59 against 10.01 (MATH-500)",
        needs=("objective",),
        decide=recipes.trained_better("objective", _FKL, _RKL, *_TREES),
        scale=_SHORT,
    ),
    Claim(
        id="jetspec/table-5/mixture-of-experts",
        says="On a mixture of experts the causal head accepts more than the bidirectional one.",
        paper="8.18 tokens a round on Qwen3-30B-A3B (GSM8K), above DDTree",
        needs=("mixture",),
        decide=recipes.trained_better("mixture", _FKL, _DIFFUSION, *_TREES),
        scale="Yes: a tiny mixture routes otherwise, and trainings are short.",
    ),
    Claim(
        id="jetspec/table-6/own-text-beats-corpus",
        says="Training on the target's own text accepts far more than on the corpus.",
        paper="6 to 9.8 against 2.5 to 3.7",
        needs=("data",),
        decide=recipes.trained_better("data", _FKL, _CORPUS, *_TREES),
        scale=_SHORT,
    ),
    Claim(
        id="jetspec/table-7/diffusion-collapses-unweighted",
        says="With equal weights the bidirectional head accepts far less than with depth weights.",
        paper="5.46 against 8.36 times plain decoding at γ = 7",
        needs=("causality",),
        decide=recipes.collapses("causality", _DIFFUSION, _DIFFUSION_7, 0.9, *_TREES),
        scale="Yes: blocks have 8 slots, not 16.",
    ),
    Claim(
        id="jetspec/table-7/causal-is-insensitive",
        says="The causal head does not care for depth weights.",
        paper="8.29, 8.50, 8.40, 8.41",
        needs=("causality",),
        decide=recipes.trained_alike("causality", _FKL, _CAUSAL_7, 0.05, *_TREES),
        scale=_SHORT,
    ),
    Claim(
        id="jetspec/table-7/causal-beats-diffusion",
        says="With equal weights the causal head accepts more than the bidirectional one.",
        paper="8.29 against 5.46",
        needs=("causality",),
        decide=recipes.trained_better("causality", _FKL, _DIFFUSION, *_TREES),
        scale=_SHORT,
    ),
    Claim(
        id="jetspec/table-7/causal-beats-weighted-diffusion",
        says="With depth weights it does so too, by little.",
        paper="8.40 against 8.36 at γ = 7",
        needs=("causality",),
        decide=recipes.trained_better("causality", _CAUSAL_7, _DIFFUSION_7, *_TREES),
        scale=_SHORT,
    ),
    Claim(
        id="jetspec/table-7/low-gamma-is-enough-for-diffusion",
        says="In blocks of 16, γ of 4 lifts the bidirectional head above equal weights.",
        paper="8.16 and 8.36 at γ = 3 and 7 against 5.46",
        needs=("weights",),
        decide=recipes.trained_better(
            "weights", recipe(**_BLOCK_16, gamma=4.0), recipe(**_BLOCK_16, gamma=None), *_TREES
        ),
        scale=_SHORT,
    ),
    Claim(
        id="jetspec/table-7/causal-beats-diffusion-at-16",
        says="In blocks of 16 with equal weights the causal head accepts more.",
        paper="8.29 against 5.46",
        needs=("weights",),
        decide=recipes.trained_better(
            "weights",
            recipe(**_BLOCK_16 | {"kind": "jetspec"}, gamma=None),
            recipe(**_BLOCK_16, gamma=None),
            *_TREES,
        ),
        scale=_SHORT,
    ),
    _score(
        "entropy-collapses",
        "jetspec-best_first+entropy@{}",
        "Ordering paths by entropy alone collapses.",
        "5.52 against 9.81 tokens a round",
        0.7,
        alike=False,
    ),
    _score(
        "small-weight-is-harmless",
        "jetspec-best_first+hybrid0.1@{}",
        "A small weight of entropy is harmless.",
        "9.81 against 9.81",
        0.05,
        alike=True,
    ),
    _score(
        "large-weight-hurts",
        "jetspec-best_first+hybrid1@{}",
        "A large weight of entropy costs acceptance.",
        "9.00 against 9.81",
        1.0,
        alike=False,
    ),
    Claim(
        id="jetspec/table-11/large-budget-at-one-request",
        says="For one request the largest budget is the best one.",
        paper="128 rows: 553 against 127.8 tokens a second",
        needs=("batches-h100",),
        decide=devices.large_budget_is_best("batches-h100", 1),
        drafters=("jetspec",),
        scale="Yes: a small model's drafter accepts too little for 128 rows to pay.",
    ),
    Claim(
        id="jetspec/table-11/best-budget-falls-with-batch",
        says="The best budget falls as more requests run together.",
        paper="128 rows up to 4 requests, 32 at 16",
        needs=("batches-h100",),
        decide=devices.best_budget_falls("batches-h100"),
        drafters=("jetspec",),
        scale=_MODEL,
    ),
    Claim(
        id="jetspec/table-11/large-budget-still-pays-at-16",
        says="At 16 requests 128 rows are still faster than plain decoding.",
        paper="803 against 287 tokens a second",
        needs=("batches-h100",),
        decide=devices.faster_than_plain("batches-h100", 16),
        drafters=("jetspec",),
        scale="Yes: at 16 × 128 rows an H100 computes; the paper's drafter accepts three times as much.",
    ),
    Claim(
        id="jetspec/table-11/small-budget-pays-at-16",
        says="At 16 requests 16 rows are faster than plain decoding.",
        paper="892 against 287 tokens a second",
        needs=("batches-h100",),
        decide=devices.faster_than_plain("batches-h100", 16, "fixed 16"),
        drafters=("jetspec",),
        scale=_MODEL,
    ),
    Claim(
        id="jetspec/table-12/cost-falls-with-depth",
        says="What a drafted token costs falls as 1/γ.",
        paper="appendix G",
        needs=("block-sizes",),
        decide=phases.cost_falls_with_block("block-sizes", "jetspec", BLOCKS),
        drafters=("jetspec", "dflash"),
        scale="Yes: on a CPU 32 slots take longer than 4.",
    ),
)
