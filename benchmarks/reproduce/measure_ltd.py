"""Measurements of Learning to Draft: records, trainings, rounds, the clock."""

from __future__ import annotations

from benchmarks.reproduce.measurement import Measurement, Setting, Words

_RL = "jaxspec.training.rl"
# Trained networks, rewards and observations of the paper's tables, by name: options of
# `training.rl.ltd`.
REWARDS = ("throughput", "acceptance", "time")
OBSERVES = ("P+D+L", "P+D", "P+L")
NETWORKS = {"1": ("1024",), "2": ("1024", "256"), "3": ("1024", "512", "256")}
# The paper's rounds, and its rules, which verify 60 drafted tokens.
_METHOD, _RULES = "eagle3-dynamic@241/d13/w10", ("ddd-ltd", "svip-ltd", "gammatune-ltd")
RULES = {name.removesuffix("-ltd"): f"{name}+static:12x61" for name in _RULES}


def _record(name: str, drafter: str, train: Words = (), test: Words = ()):
    """Make the commands that record training and held-out rounds, and time them."""

    def commands(setting: Setting) -> list[Words]:
        limits, tokens = (("120", "30"), "256") if setting.full else (("12", "8"), "64")
        rounds = ("--drafter", drafter, "--target", setting.model, "--preset", "ltd-paper")
        texts = (
            ("train", setting.corpus, limits[0], train),
            ("test", setting.prompts, limits[1], test),
        )
        return [
            *(
                (f"{_RL}.record", *rounds, "--prompts", str(file), "--limit", limit, *own)
                + ("--max-new-tokens", tokens, "--out", setting.at(name, f"{part}.npz"))
                for part, file, limit, own in texts
            ),
            (f"{_RL}.times", *rounds, "--out", setting.at(name, "times.json")),
        ]

    return commands


def _inputs(setting: Setting, record: str) -> Words:
    """Return the options of studies that read a record of held-out rounds."""
    words = ("--record", setting.at(record, "test.npz"))
    words += ("--times", setting.at(record, "times.json"))
    return (*words, "--tuned-on", setting.at(record, "train.npz"))


def _train(setting: Setting, record: str, run: str, seed: int, *options: str) -> Words:
    """Return the command of a training with the paper's preset."""
    share = "1" if setting.full else "0.2"
    words = (f"{_RL}.ltd", "--record", setting.at(record, "train.npz"))
    words += ("--times", setting.at(record, "times.json"), "--preset", "ltd-paper")
    return (*words, "--share", share, "--seed", str(seed), "--run", f"{run}-{seed}", *options)


def _ways(setting: Setting, ways: dict[str, str]) -> Words:
    """Name ways: {way, with `:half` if one decides: folder of one seed, `{}` for it}."""
    seeds = range(setting.seeds)
    given = [f"{way}=" + ",".join(map(folder.format, seeds)) for way, folder in ways.items()]
    return ("--ways", *given)


def _turns(name: str, record: str):
    """Make the commands of trainings by the whole schedule, and of their figures."""

    def commands(setting: Setting) -> list[Words]:
        run = setting.at(name, "run")
        apart = f"{run}-{{}}/1-depth/policy"
        ways = {"turns": f"{run}-{{}}/policy", "second": f"{run}-{{}}/2-size/policy"}
        ways |= {"apart": apart, "depth alone:depth": apart, "size alone:size": apart}
        words = (*_inputs(setting, record), *_ways(setting, ways), "--out")
        return [
            *(_train(setting, record, run, seed) for seed in range(setting.seeds)),
            ("benchmarks", "ltd-compare", *words, setting.at(name, "report.json")),
            ("benchmarks", "ltd-rounds", *words, setting.at(name, "rounds.json")),
        ]

    return commands


def _varied(name: str, options: dict[str, Words]):
    """Make the commands of trainings of the size policy alone that differ in some options."""

    def commands(setting: Setting) -> list[Words]:
        trained = [
            _train(setting, "ltd-record", setting.at(name, label), seed, "--schedule", "size", *own)
            for label, own in options.items()
            for seed in range(setting.seeds)
        ]
        ways = {label: setting.at(name, f"{label}-{{}}/policy") for label in options}
        words = (*_inputs(setting, "ltd-record"), *_ways(setting, ways))
        return [
            *trained,
            ("benchmarks", "ltd-compare", *words, "--out", setting.at(name, "report.json")),
        ]

    return commands


def _clock(name: str, temperature: float):
    def commands(setting: Setting) -> list[Words]:
        trained = setting.at("ltd-turns", "run-{}/policy")
        controls = setting.at(name, "controls")
        made = ("benchmarks", "ltd-controls", "--record", setting.at("ltd-record", "train.npz"))
        made += ("--times", setting.at("ltd-record", "times.json"))
        made += ("--policy", trained.format(0), "--out", controls)
        named = [f"ltd-{seed}={trained.format(seed)}" for seed in range(setting.seeds)]
        rules = [f"{rule}={policy}" for rule, policy in RULES.items()]
        policies = ",".join(["none", f"static={controls}/static", *named, *rules])
        words = ("benchmarks", "policies", setting.model, "--method", _METHOD)
        words += ("--policies", policies, "--against", "static")
        words += ("--times", setting.at("ltd-record", "times.json"))
        words += ("--temperature", f"{temperature:g}", *setting.sizes((4, 96, 3), (30, 256, 5)))
        return [made, (*words, "--json", setting.at(name, "report.json"))]

    return commands


def _trained(
    name: str, summary: str, commands, mini: float, *after: str, drafter: str = "eagle3"
) -> Measurement:
    return Measurement(
        name=name,
        summary=summary,
        commands=commands,
        minutes={"mini": mini},
        after=after,
        drafters=(drafter,),
        trains=True,
    )


_SIZE = {name: ("--reward", name) for name in REWARDS}
_SEEN = {name: ("--observes", name) for name in OBSERVES}
_NETS = {name: ("--size-actor", *sizes) for name, sizes in NETWORKS.items()}
_OTHERS = ("--only", "prose", "math")
MEASUREMENTS = (
    _trained("ltd-record", "recorded rounds and their times", _record("ltd-record", "eagle3"), 15),
    _trained(
        "ltd-turns",
        "both policies, in turns and apart",
        _turns("ltd-turns", "ltd-record"),
        25,
        "ltd-record",
    ),
    _trained(
        "ltd-rewards", "the size policy by reward", _varied("ltd-rewards", _SIZE), 10, "ltd-record"
    ),
    _trained(
        "ltd-observes",
        "the size policy by what it sees",
        _varied("ltd-observes", _SEEN),
        10,
        "ltd-record",
    ),
    _trained(
        "ltd-networks",
        "the size policy by its layers",
        _varied("ltd-networks", _NETS),
        10,
        "ltd-record",
    ),
    _trained(
        "ltd-code-record",
        "recorded rounds, trained on code alone",
        _record("ltd-code-record", "eagle3", ("--only", "code"), _OTHERS),
        10,
    ),
    _trained(
        "ltd-code",
        "policies trained on code, on other domains",
        _turns("ltd-code", "ltd-code-record"),
        25,
        "ltd-code-record",
    ),
    _trained(
        "ltd-griffin-record",
        "recorded rounds of GRIFFIN",
        _record("ltd-griffin-record", "griffin"),
        15,
        drafter="griffin",
    ),
    _trained(
        "ltd-griffin",
        "both policies on GRIFFIN",
        _turns("ltd-griffin", "ltd-griffin-record"),
        25,
        "ltd-griffin-record",
        drafter="griffin",
    ),
    _trained(
        "ltd-clock-t0",
        "policies by the clock, temperature 0",
        _clock("ltd-clock-t0", 0.0),
        20,
        "ltd-turns",
    ),
    _trained(
        "ltd-clock-t1",
        "policies by the clock, temperature 1",
        _clock("ltd-clock-t1", 1.0),
        20,
        "ltd-turns",
    ),
)
