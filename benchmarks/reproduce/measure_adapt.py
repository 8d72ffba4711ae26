"""Measurements of drafters that learn while they serve, on streams of prompts."""

from __future__ import annotations

from benchmarks.reproduce.measurement import Measurement, Setting, Words

# Arms of the paper's tables, and the rule that never updates.
ARMS = "never,osd,always-full,bandit-paper,bandit-paper-full"
# A small model learns at ten times the rates of an 8B one.
RATES = ("--head-rate", "1e-3", "--full-rate", "3e-4")


def _stream(name: str, stream: str, queries: tuple[int, int], *options: str):
    def commands(setting: Setting) -> list[Words]:
        count, tokens = (queries[1], "256") if setting.full else (queries[0], "96")
        words = ("benchmarks", "adapt", setting.model, "--drafter", "specblock")
        words += ("--prompts", str(setting.prompts), "--stream", stream, "--arms", ARMS)
        words += ("--queries", str(count), "--seeds", str(setting.seeds))
        words += ("--max-new-tokens", tokens, "--clock", "modelled", *RATES, *options)
        words += ("--keep", setting.at(name, "runs.jsonl"))
        return [(*words, "--json", setting.at(name, "report.json"))]

    return commands


def _updates(setting: Setting) -> list[Words]:
    words = ("benchmarks", "adapt", setting.model, "--drafter", "specblock", "--updates", "7")
    words += ("--prompts", str(setting.prompts), "--limit", "4", "--max-new-tokens", "96")
    return [(*words, "--json", setting.at("updates", "report.json"))]


def _adapting(name: str, summary: str, commands, mini: float) -> Measurement:
    return Measurement(
        name=name,
        summary=summary,
        commands=commands,
        minutes={"mini": mini},
        drafters=("specblock",),
    )


# Room for as many positions as a short stream gives.
_ROOM = ("--head-room", "128", "--full-room", "256")
MEASUREMENTS = (
    _adapting("updates", "gradient steps of the head and of all weights", _updates, 3),
    _adapting(
        "passes",
        "a mixed stream again and again, every rule of updates",
        _stream("passes", "passes", (8, 500), *_ROOM),
        8,
    ),
    _adapting(
        "passes-t1",
        "the same at temperature 1",
        _stream("passes-t1", "passes", (8, 500), *_ROOM, "--temperature", "1"),
        13,
    ),
    _adapting(
        "blocks",
        "one domain after the other, every rule of updates",
        _stream("blocks", "blocks", (24, 500), *_ROOM),
        7,
    ),
)
