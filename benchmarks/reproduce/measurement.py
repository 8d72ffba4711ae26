"""A measurement: the commands of this project that one cached run consists of."""

from __future__ import annotations

import dataclasses
import importlib
import typing
from collections.abc import Callable, Mapping
from pathlib import Path

SCALES = ("small", "full")
# The first word of a command after `python -m`, of those that argparse or tyro read.
JAXSPEC, STUDIES = "jaxspec", "benchmarks"
Words = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a request runs, and where.

    Attributes:
      model: as `jaxspec.load` takes it.
      drafters: names of those that it has.
      scale: one of `SCALES`.
      prompts: file of held-out prompts.
      corpus: file of texts that drafters and policies may be trained on, if there is one.
      out: folder with a folder of every measurement.
      seeds: trainings of each kind.
    """

    model: str
    drafters: tuple[str, ...]
    scale: str
    prompts: Path
    corpus: Path | None
    out: Path
    seeds: int = 3

    @property
    def full(self) -> bool:
        """Whether this is the full scale."""
        return self.scale == "full"

    @property
    def tiny(self) -> bool:
        """Whether the model is `mini`, whose rounds take milliseconds."""
        return self.model == "mini"

    def has(self, *drafters: str) -> bool:
        """Whether the model has all of these drafters."""
        return set(drafters) <= set(self.drafters)

    def at(self, measurement: str, name: str = "") -> str:
        """Return the path of a measurement's folder, or of a file in it."""
        return str(self.out / measurement / name)

    def sizes(self, small: tuple[int, int, int], full: tuple[int, int, int]) -> Words:
        """Return the options that size decodes: prompts per domain, new tokens, repeats."""
        limit, tokens, repeats = full if self.full else small
        if not self.tiny and not self.full:  # a real model on a CPU
            limit, tokens = max(limit // 3, 2), tokens // 3
        given = ("--prompts", str(self.prompts), "--limit", str(limit))
        return (*given, "--max-new-tokens", str(tokens), "--repeats", str(repeats))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """Commands whose outputs decide claims.

    Attributes:
      name: of its folder.
      summary: what it measures, in a few words.
      commands: setting -> the commands in order, each the words after `python -m`. They write JSON
        or JSON Lines to `setting.at(name)`.
      minutes: estimates for one idle core at the small scale, by model.
      drafters: that the model must have.
      after: measurements whose files it reads.
      trains: whether it needs the corpus.
      recipes: folder of the runs of recipes that it reads, which several measurements may share;
        empty if it reads the reports in its own folder.
    """

    name: str
    summary: str
    commands: Callable[[Setting], list[Words]]
    minutes: Mapping[str, float]
    drafters: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    trains: bool = False
    recipes: str = ""

    def find_obstacle(self, setting: Setting) -> str | None:
        """Say why the measurement cannot be run in a setting; None if it can."""
        missing = [name for name in self.drafters if not setting.has(name)]
        if missing:
            return f"{setting.model} has no drafter {' and '.join(missing)}"
        if self.trains and setting.corpus is None:
            return "it trains: give --corpus FILE"
        if setting.model not in self.minutes and not setting.full:
            return f"it is not sized for {setting.model}: give --scale full, on a GPU"
        return None


def check_command(words: Words) -> None:
    """Let the parser of a command read its words, without running it.

    Raises:
      SystemExit, ValueError: the command would refuse them.
      ImportError: there is no such command.
    """
    module, *rest = words
    if module == JAXSPEC:
        from jaxspec.cli.main import parse

        parse(rest)
        return
    import tyro

    if module != STUDIES:  # a recipe: training.rl.times has TimesOptions
        from training.run.command import parse_with_preset

        recipe = importlib.import_module(module)
        if hasattr(recipe, "parse_options"):
            recipe.parse_options(rest)
            return
        options = getattr(recipe, f"{module.rpartition('.')[2].title()}Options")
        if hasattr(recipe, "ROUNDS"):
            parse_with_preset(options, recipe.ROUNDS, arguments=rest)
        else:
            tyro.cli(options, args=rest)
        return
    runner = importlib.import_module("benchmarks.__main__")
    name, *rest = rest
    study = importlib.import_module(runner.STUDIES[name].module)
    if hasattr(study, "add_options"):
        runner.make_parser(name, study).parse_args(rest)
    else:
        tyro.cli(typing.get_type_hints(study.main)["options"], args=rest)
