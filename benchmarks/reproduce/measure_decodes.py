"""Measurements that decode in turns: tables of methods, budgets, scores, gaps."""

from __future__ import annotations

from benchmarks.reproduce.measurement import Measurement, Setting, Words

# As published: scores are the drafter's own log-probabilities, and drafts are drawn without the
# target's noise.
PRINTED = ("--score-temperature", "1")
EAGLE = "eagle3-dynamic@60/d7/w10"
# Algorithm 2: the class decides at every slot.
SPECBLOCK = "specblock-rank_guided@60/width=null/classes=default/starts=all"
MEDUSA, PARALLEL, FALCON = "medusa-static@60", "parallelspec-chain@8", "falcon-static@60"
SMALL_MODEL = "draft_model-chain@6"
DFLASH, DFLASH_16 = "dflash-chain@8", "dflash-chain@16/b16"
BASTION = "dflash-best_first@64/bastion-paper"
# BASTION's rule with the calibrated costs of the paper, and with its other costs.
STATIC, FIRST_DECREASE = "bastion-paper+fit", "bastion-first-decrease+fit"
RUNNING, BOTH, ALL_SIZES = "bastion-paper+bare+ema", "bastion-paper+fit+ema", "best+fit"
# Block sizes whose costs of drafting are compared, on the same drafter.
BLOCKS = (4, 8, 16, 32)
SCORES = ("", "+hybrid0.1", "+hybrid0.3", "+hybrid1", "+entropy")


def budgets(setting: Setting) -> tuple[int, ...]:
    """Return the rows of JetSpec's trees: the paper's, fewer at the small scale."""
    return (16, 64, 128, 256) if setting.full else (16, 64, 128) if setting.tiny else (16, 64)


def drafter_methods(setting: Setting) -> list[str]:
    """List the methods of SpecBlock's table 1."""
    found = (EAGLE, SPECBLOCK, MEDUSA, PARALLEL, FALCON, SMALL_MODEL)
    return [name for name in found if setting.has(name.partition("-")[0])]


def block_methods(setting: Setting) -> list[str]:
    """List the methods of the tables 1 and 2 of JetSpec, and of BASTION's table 1."""
    trees = [
        f"{name}@{rows}{own}"
        for rows in budgets(setting)
        for name, own in (
            ("dflash-best_first", ""),
            ("jetspec-expand", "/w7"),
            ("jetspec-best_first", ""),
        )
    ]
    eagle = [EAGLE] if setting.has("eagle3") else []
    return [*eagle, DFLASH, DFLASH_16, *trees, BASTION]


def _bench(name: str, methods, temperature: float, profile: bool = True):
    def commands(setting: Setting) -> list[Words]:
        sizes = setting.sizes((6, 96, 2), (30, 256, 3))
        chosen = ",".join(["ar", *methods(setting)])
        given = ("--temperature", f"{temperature:g}", "--coupled", "off", *PRINTED)
        files = ("--json", setting.at(name, "bench.json"))
        files += ("--spec-bench", setting.at(name, "answers.jsonl"))
        more = () if profile else ("--no-profile",)
        words = ("jaxspec", "bench", setting.model, "--methods", chosen)
        return [(*words, *sizes, *given, *more, *files)]

    return commands


def _study(name: str, study: str, *options: str, sizes=None, file: str = "report.json"):
    """Make the commands of one study that writes one report."""

    def commands(setting: Setting) -> list[Words]:
        words = ("benchmarks", study, setting.model, *options)
        words += () if sizes is None else setting.sizes(*sizes)
        return [(*words, "--json", setting.at(name, file))]

    return commands


def _gaps(setting: Setting) -> list[Words]:
    limit, tokens = ("30", "256") if setting.full else ("8", "64") if setting.tiny else ("2", "32")
    budget = "255" if setting.full or setting.tiny else "64"
    words = ("benchmarks", "gaps", setting.model, "--drafters", "jetspec,dflash")
    words += ("--prompts", str(setting.prompts), "--limit", limit, "--max-new-tokens", tokens)
    return [(*words, "--budget", budget, "--json", setting.at("gaps", "report.json"))]


def _sweep(name: str, temperature: float):
    def commands(setting: Setting) -> list[Words]:
        rows = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
        rows = rows if setting.full else rows[:7] if setting.tiny else rows[:6]
        listed, most = ",".join(map(str, rows)), str(rows[-1])
        words = ("benchmarks", "sweep", setting.model, "--method", "dflash-best_first")
        words += ("--budgets", listed, "--budget", most, "--widths", listed, "--beam")
        words += ("--policies", ",".join((ALL_SIZES, STATIC, FIRST_DECREASE, RUNNING, BOTH)))
        words += ("--temperature", f"{temperature:g}", *PRINTED)
        sizes = setting.sizes((4, 96, 3), (30, 256, 3))
        return [(*words, *sizes, "--json", setting.at(name, "report.json"))]

    return commands


_BLOCK_CHAINS = [f"{name}-chain@{b}/b{b}" for name in ("jetspec", "dflash") for b in BLOCKS]
_SCORED = [f"jetspec-best_first{score}@{rows}" for rows in (16, 64) for score in SCORES]
_BLOCK = ("dflash", "jetspec")
MEASUREMENTS = (
    Measurement(
        name="drafters-t0",
        summary="drafters in turns on the same prompts, temperature 0",
        commands=_bench("drafters-t0", drafter_methods, 0.0),
        minutes={"mini": 3},
        drafters=("specblock", "eagle3"),
    ),
    Measurement(
        name="drafters-t1",
        summary="drafters in turns on the same prompts, temperature 1",
        commands=_bench("drafters-t1", drafter_methods, 1.0),
        minutes={"mini": 4},
        drafters=("specblock", "eagle3"),
    ),
    Measurement(
        name="trees-t0",
        summary="chains and trees of block drafters by budget, temperature 0",
        commands=_bench("trees-t0", block_methods, 0.0),
        minutes={"mini": 5, "smollm2-135m": 40},
        drafters=_BLOCK,
    ),
    Measurement(
        name="trees-t1",
        summary="chains and trees of block drafters by budget, temperature 1",
        commands=_bench("trees-t1", block_methods, 1.0),
        minutes={"mini": 6, "smollm2-135m": 50},
        drafters=_BLOCK,
    ),
    Measurement(
        name="block-sizes",
        summary="chains by block size, with the phases of a round",
        commands=_bench("block-sizes", lambda setting: _BLOCK_CHAINS, 0.0),
        minutes={"mini": 2, "smollm2-135m": 25},
        drafters=_BLOCK,
    ),
    Measurement(
        name="scores",
        summary="JetSpec's trees by the score that orders paths",
        commands=_bench("scores", lambda setting: _SCORED, 0.0, profile=False),
        minutes={"mini": 3, "smollm2-135m": 30},
        drafters=("jetspec",),
    ),
    Measurement(
        name="gaps",
        summary="the rank-1 gap between drafter and target",
        commands=_gaps,
        minutes={"mini": 1, "smollm2-135m": 15},
        drafters=_BLOCK,
    ),
    Measurement(
        name="sweep-t0",
        summary="fixed budgets, beams and BASTION's rules on DFlash, temperature 0",
        commands=_sweep("sweep-t0", 0.0),
        minutes={"mini": 11, "smollm2-135m": 45},
        drafters=("dflash",),
    ),
)
