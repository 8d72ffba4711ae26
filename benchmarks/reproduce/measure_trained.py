"""Measurements that train: drafters by recipe, Learning to Draft, BlockPilot."""

from __future__ import annotations

from benchmarks.reproduce.measurement import Measurement, Setting, Words

_RL = "jaxspec.training.rl"
# Trained networks and rewards of Learning to Draft's tables, by name: options of `training.rl.ltd`.
REWARDS = ("throughput", "acceptance", "time")
OBSERVES = ("P+D+L", "P+D", "P+L")
NETWORKS = {"1": ("1024",), "2": ("1024", "256"), "3": ("1024", "512", "256")}
# BlockPilot's ablations: name of the report -> options.
ABLATIONS = {
    "width-1024": ("--width", "1024"),
    "width-4096": ("--width", "4096"),
    "layers-1": ("--layers", "1"),
    "layers-3": ("--layers", "3"),
    "reach-1": ("--reach", "1"),
    "reach-3": ("--reach", "3"),
}


def _recipes(sweep: str):
    def commands(setting: Setting) -> list[Words]:
        scale = "full" if setting.full else "brief"
        words = ("benchmarks", "recipes", sweep, "--corpus", str(setting.corpus))
        words += ("--prompts", str(setting.prompts), "--target", setting.model)
        words += ("--seeds", *map(str, range(setting.seeds)), "--as-published")
        return [(*words, "--scale", scale, "--out", setting.at("recipes"))]

    return commands


def _record(setting: Setting) -> list[Words]:
    at, limits = "ltd-record", ("120", "30") if setting.full else ("16", "10")
    rounds = ("--drafter", "eagle3", "--target", setting.model)
    texts = (("train", setting.corpus, limits[0]), ("test", setting.prompts, limits[1]))
    return [
        *(
            (f"{_RL}.record", *rounds, "--prompts", str(file), "--limit", limit)
            + ("--out", setting.at(at, f"{name}.npz"))
            for name, file, limit in texts
        ),
        (f"{_RL}.times", *rounds, "--out", setting.at(at, "times.json")),
    ]


def _train_ltd(setting: Setting, run: str, seed: int, *options: str) -> Words:
    """Return the command of a training with the paper's preset."""
    share = "1" if setting.full else "0.2"
    words = (f"{_RL}.ltd", "--record", setting.at("ltd-record", "train.npz"))
    words += ("--times", setting.at("ltd-record", "times.json"), "--preset", "ltd-paper")
    words += ("--share", share, "--seed", str(seed), "--run", f"{run}-{seed}", *options)
    return words


def _compare_ltd(setting: Setting, name: str, ways: dict[str, str]) -> Words:
    """Compare trainings: {way, with `:half` if one decides: folder of one seed, `{}` for it}."""
    given = [
        f"{way}=" + ",".join(folder.format(seed) for seed in range(setting.seeds))
        for way, folder in ways.items()
    ]
    words = ("benchmarks", "ltd-compare", "--record", setting.at("ltd-record", "test.npz"))
    words += ("--times", setting.at("ltd-record", "times.json"))
    words += ("--tuned-on", setting.at("ltd-record", "train.npz"), "--ways", *given)
    return (*words, "--out", setting.at(name, "report.json"))


def _turns(setting: Setting) -> list[Words]:
    run = setting.at("ltd-turns", "run")
    apart = f"{run}-{{}}/1-depth/policy"
    ways = {
        "turns": f"{run}-{{}}/policy",
        "second": f"{run}-{{}}/2-size/policy",
        "apart": apart,
        "depth alone:depth": apart,
        "size alone:size": apart,
    }
    trained = [_train_ltd(setting, run, seed) for seed in range(setting.seeds)]
    return [*trained, _compare_ltd(setting, "ltd-turns", ways)]


def _varied(name: str, options: dict[str, Words]):
    """Make the commands of trainings of the size policy alone that differ in some options."""

    def commands(setting: Setting) -> list[Words]:
        alone = ("--schedule", "size")
        found = [
            _train_ltd(setting, setting.at(name, label), seed, *alone, *own)
            for label, own in options.items()
            for seed in range(setting.seeds)
        ]
        ways = {label: setting.at(name, f"{label}-{{}}/policy") for label in options}
        return [*found, _compare_ltd(setting, name, ways)]

    return commands


def _clock(name: str, temperature: float):
    def commands(setting: Setting) -> list[Words]:
        trained = setting.at("ltd-turns", "run-{}/policy")
        controls = setting.at(name, "controls")
        made = ("benchmarks", "ltd-controls", "--record", setting.at("ltd-record", "train.npz"))
        made += ("--times", setting.at("ltd-record", "times.json"))
        made += ("--policy", trained.format(0), "--out", controls)
        named = [f"ltd-{seed}={trained.format(seed)}" for seed in range(setting.seeds)]
        rules = "ddd-ltd,svip-ltd,gammatune-ltd"
        policies = ",".join(["none", f"static={controls}/static", *named, rules])
        words = ("benchmarks", "policies", setting.model, "--policies", policies)
        words += ("--against", "static", "--times", setting.at("ltd-record", "times.json"))
        words += ("--temperature", f"{temperature:g}", *setting.sizes((4, 96, 3), (30, 256, 5)))
        return [made, (*words, "--json", setting.at(name, "report.json"))]

    return commands


def _blockpilot(setting: Setting) -> list[Words]:
    name = "blockpilot"
    limits = ("400", "60") if setting.full else ("60", "20")
    words = ("benchmarks", "blockpilot", "--target", setting.model, "--drafter", "dflash")
    words += ("--prompts", str(setting.corpus), "--held-out", str(setting.prompts))
    words += ("--limit", limits[0], "--test-limit", limits[1], "--seeds", str(setting.seeds))
    words += ("--answers", setting.at(name, "answers"), "--out", setting.at(name, "run"))
    wide = ("--sizes", "4", "6", "8", "10", "12", "16", "32")
    timed = ("--times", setting.at(name, "times.json"))
    # The widest sizes first: the rounds of the others follow from their answers.
    runs = {"wide": (*wide, "--variants", "raw logits"), "report": timed}
    runs |= {label: (*own, "--variants", "raw logits") for label, own in ABLATIONS.items()}
    return [
        (*words, *own, "--json", setting.at(name, f"{label}.json")) for label, own in runs.items()
    ]


def _trained(
    name: str, summary: str, commands, mini: float, *after: str, drafter: str = "", smollm2=None
) -> Measurement:
    """Make a measurement that trains; `smollm2` are its minutes there, if it is run there."""
    return Measurement(
        name=name,
        summary=summary,
        commands=commands,
        minutes={"mini": mini} | ({"smollm2-135m": smollm2} if smollm2 else {}),
        after=after,
        drafters=(drafter,) if drafter else (),
        trains=True,
    )


_SIZE = {name: ("--reward", name) for name in REWARDS}
_SEEN = {name: ("--observes", name) for name in OBSERVES}
_NETS = {name: ("--size-actor", *sizes) for name, sizes in NETWORKS.items()}
MEASUREMENTS = (
    _trained("objective", "JetSpec heads by loss", _recipes("objective"), 35),
    _trained("causality", "block drafters by mask and depth weights", _recipes("causality"), 45),
    _trained("data", "JetSpec heads by training text", _recipes("data"), 15),
    _trained("rates", "JetSpec heads by AdamW's rate", _recipes("rates"), 60),
    _trained("weights", "block drafters by depth weights and block", _recipes("weights"), 150),
    _trained("components", "SpecBlock without each of its parts", _recipes("specblock-paper"), 140),
    _trained("ltd-record", "recorded rounds and their times", _record, 6, drafter="eagle3"),
    _trained("ltd-turns", "both policies, in turns and apart", _turns, 30, "ltd-record"),
    _trained(
        "ltd-rewards", "the size policy by reward", _varied("ltd-rewards", _SIZE), 12, "ltd-record"
    ),
    _trained(
        "ltd-observes",
        "the size policy by what it sees",
        _varied("ltd-observes", _SEEN),
        12,
        "ltd-record",
    ),
    _trained(
        "ltd-networks",
        "the size policy by its layers",
        _varied("ltd-networks", _NETS),
        12,
        "ltd-record",
    ),
    _trained(
        "ltd-clock-t0",
        "policies by the clock, temperature 0",
        _clock("ltd-clock-t0", 0.0),
        12,
        "ltd-turns",
    ),
    _trained(
        "ltd-clock-t1",
        "policies by the clock, temperature 1",
        _clock("ltd-clock-t1", 1.0),
        14,
        "ltd-turns",
    ),
    _trained(
        "blockpilot",
        "BlockPilot's predictor and its ablations",
        _blockpilot,
        20,
        drafter="dflash",
        smollm2=60,
    ),
)
