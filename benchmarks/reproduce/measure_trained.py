"""Measurements that train drafters by recipe, and BlockPilot."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.reproduce.measurement import Measurement, Setting, Words

# Folder of the runs of recipes for the model itself.
RUNS = "recipes"
# BlockPilot's ablations: name of the report -> options.
ABLATIONS = {
    "width-1024": ("--width", "1024"),
    "width-4096": ("--width", "4096"),
    "layers-1": ("--layers", "1"),
    "layers-3": ("--layers", "3"),
    "reach-1": ("--reach", "1"),
    "reach-3": ("--reach", "3"),
}


def _recipes(
    sweep: str, runs: str = RUNS, target: str | None = None, brief: str | None = None
) -> Callable[[Setting], list[Words]]:
    """Make the command of a comparison; `brief` is the one at the small scale, if it is another."""

    def commands(setting: Setting) -> list[Words]:
        scale = "full" if setting.full else "brief"
        chosen = sweep if setting.full or brief is None else brief
        words = ("benchmarks", "recipes", chosen, "--corpus", str(setting.corpus))
        words += ("--prompts", str(setting.prompts))
        words += ("--target", setting.at(target) if target else setting.model)
        words += ("--seeds", *map(str, range(setting.seeds)), "--as-published")
        return [(*words, "--scale", scale, "--out", setting.at(runs))]

    return commands


def _mixture(setting: Setting) -> list[Words]:
    """Train a mixture of experts on the texts of `mini`, and drafters for it."""
    tokenizer, run = ("--tokenizer", "jaxspec/zoo/mini"), setting.at("mixture", "run")
    trained = ("jaxspec.training.train_target", "--preset", "mini-moe", *tokenizer)
    trained += ("--data", str(setting.corpus), "--heldout", str(setting.prompts))
    target = setting.at("mixture", "target")
    written = ("jaxspec.training.export", *tokenizer, "--run", run, "--out", target)
    drafters = _recipes("causality", "mixture/recipes", "mixture/target")
    return [(*trained, "--loop.run", run), written, *drafters(setting)]


def _blockpilot(setting: Setting) -> list[Words]:
    name = "blockpilot"
    limits = ("400", "60") if setting.full else ("60", "20")
    words = ("benchmarks", "blockpilot", "--target", setting.model, "--drafter", "dflash")
    words += ("--prompts", str(setting.corpus), "--held-out", str(setting.prompts))
    words += ("--limit", limits[0], "--test-limit", limits[1], "--seeds", str(setting.seeds))
    words += ("--answers", setting.at(name, "answers"), "--out", setting.at(name, "run"))
    # Those of all others are among them.
    wide = ("--sizes", *map(str, (*range(4, 13), 16)))
    timed = ("--times", setting.at(name, "times.json"))
    # The widest sizes first: the rounds of the others follow from their answers.
    runs = {"wide": (*wide, "--variants", "raw logits"), "report": timed}
    runs |= {label: (*own, "--variants", "raw logits") for label, own in ABLATIONS.items()}
    sampled = ("--temperature", "1", "--samples", str(setting.seeds))
    sampled += ("--answers", setting.at(name, "sampled"), "--out", setting.at(name, "run-t1"))
    runs["sampled"] = (*sampled, "--variants", "raw logits")
    return [
        (*words, *own, "--json", setting.at(name, f"{label}.json")) for label, own in runs.items()
    ]


def _sweep(
    name: str, summary: str, sweep: str, minutes: float, brief: str | None = None
) -> Measurement:
    """Make a measurement by a comparison of recipes."""
    return Measurement(
        name=name,
        summary=summary,
        commands=_recipes(sweep, brief=brief),
        minutes={"mini": minutes},
        trains=True,
        recipes=RUNS,
    )


MEASUREMENTS = (
    _sweep("objective", "JetSpec heads by loss", "objective", 35),
    _sweep("causality", "block drafters by mask and depth weights", "causality", 45),
    _sweep("data", "JetSpec heads by training text", "data", 15),
    _sweep("rates", "JetSpec heads by AdamW's rate", "rates", 60),
    _sweep("weights", "block drafters by depth weights and block", "weights", 45, "weights-16"),
    _sweep("components", "SpecBlock without each of its parts", "specblock-paper", 140),
    Measurement(
        name="mixture",
        summary="block drafters of a small mixture of experts",
        commands=_mixture,
        minutes={"mini": 120},
        trains=True,
        recipes="mixture/recipes",
    ),
    Measurement(
        name="blockpilot",
        summary="BlockPilot's predictor and its ablations",
        commands=_blockpilot,
        minutes={"mini": 20, "smollm2-135m": 60},
        drafters=("dflash",),
        trains=True,
    ),
)
