"""Measurements of single drafters and devices: branching, costs, rounds, models of engines."""

from __future__ import annotations

from benchmarks.reproduce.measurement import Measurement, Setting, Words


def _batches(device: str, arch: str = "qwen3-8b"):
    name = f"batches-{device}" if arch == "qwen3-8b" else f"batches-{arch}"

    def commands(setting: Setting) -> list[Words]:
        limit, budget = ("24", "128") if setting.full or setting.tiny else ("6", "32")
        words = ("benchmarks", "batches", setting.model, "--drafter", "jetspec")
        words += ("--prompts", str(setting.prompts), "--limit", limit, "--budget", budget)
        words += ("--arch", arch, "--device", device, "--batches", "1,4,16,64")
        return [(*words, "--json", setting.at(name, "report.json"))]

    return commands


def _plans(setting: Setting) -> list[Words]:
    """Ask the roofline for verification at published sizes."""
    found = []
    for arch in ("qwen3-8b", "qwen3-32b"):
        words = ("jaxspec", "plan", arch, "--gpus", "1xa100", "--context", "1k", "--rows", "60")
        found.append((*words, "--json", setting.at("plans", f"{arch}.json")))
    return found


def _branching(setting: Setting) -> list[Words]:
    limit, tokens = ("30", "256") if setting.full else ("6", "96")
    words = ("benchmarks", "specblock", setting.model, "--prompts", str(setting.prompts))
    words += ("--limit", limit, "--max-new-tokens", tokens, "--budgets", "61")
    return [(*words, "--json", setting.at("branching", "report.json"))]


def _calibration(setting: Setting) -> list[Words]:
    """Fit the roofline on dense numbers of rows, as the paper does."""
    widths = "1-16,24,32,48,64,96,128,192,256" if setting.full else "1-8,12,16,24,32"
    words = ("jaxspec", "calibrate", setting.model, "dflash", "--fit", "--widths", widths)
    words += ("--builder", "best_first", "--contexts", "64,256")
    return [(*words, "--json", setting.at("calibration", "costs.json"))]


# Tokens a round that SpecBlock's table 1 has of each drafter, whose rounds are timed with them.
ACCEPTED = {"specblock": "4.41", "eagle3-dynamic/d7/w10": "5.89"}


def _latency(setting: Setting) -> list[Words]:
    arch = "llama-3.1-8b" if setting.full else setting.model
    return [
        ("jaxspec", "bench", "latency", arch, "--method", method, "--widths", "61")
        + ("--contexts", "256", "--force-acceptance", accepted, "--minutes", "600")
        + ("--json", setting.at("latency", f"{method.partition('-')[0]}.json"))
        for method, accepted in ACCEPTED.items()
    ]


MEASUREMENTS = (
    Measurement(
        name="branching",
        summary="SpecBlock's trees by widths and blocks, and its rank classes on held-out answers",
        commands=_branching,
        minutes={"mini": 4},
        drafters=("specblock",),
    ),
    Measurement(
        name="calibration",
        summary="the roofline fitted to measured verification",
        commands=_calibration,
        minutes={"mini": 2, "smollm2-135m": 10},
        drafters=("dflash",),
    ),
    Measurement(
        name="latency",
        summary="rounds of SpecBlock and EAGLE-3 of random weights that accept as the paper's do",
        commands=_latency,
        minutes={"mini": 1, "smollm2-135m": 8},
    ),
    *(
        Measurement(
            name=f"batches-{label}",
            summary=f"recorded trees, rounds by the roofline of {arch} on {device}",
            commands=_batches(device, arch),
            minutes={"mini": 3, "smollm2-135m": 12},
            drafters=("jetspec",),
        )
        for label, device, arch in (
            ("h100", "h100", "qwen3-8b"),
            ("a100", "a100", "qwen3-8b"),
            ("qwen3-32b", "h100", "qwen3-32b"),
        )
    ),
    Measurement(
        name="plans",
        summary="rounds of 8B and 32B targets on an A100, by the roofline",
        commands=_plans,
        minutes={"mini": 0.3, "smollm2-135m": 0.3},
    ),
)
