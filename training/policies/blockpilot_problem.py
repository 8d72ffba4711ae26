"""BlockPilot's training problem: options, answers, their split, and the times of rounds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxspec.core.params import Params

from .block_costs import (
    BlockCosts,
    BlockCostsOptions,
    load_block_costs,
    measure_blocks,
    save_block_costs,
)
from .blockpilot_data import Answers, answer, neighbourhood, split_prompts
from .options import PromptsToAnswer

# The paper's: two layers of 2048 units read all raw logits and choose among five block sizes; its
# headline is at temperature 1. It does not say how many answers make a label there.
PRESETS: dict[str, dict[str, Any]] = {
    "blockpilot": {},
    "blockpilot-paper": dict(
        reach=2,
        builder="chain",
        label="acceptance",
        objective="label",
        scale="raw",
        reduction="all",
        width=2048,
        layers=2,
        limit=None,
        max_new_tokens=2048,
        temperature=1.0,
        samples=3,
    ),
}


@dataclasses.dataclass(kw_only=True)
class BlockPilotOptions(PromptsToAnswer):
    """Options of the training.

    Attributes:
      out: folder for the policy, the report and everything else.
      held_out: JSON Lines of test prompts; None takes a fifth of `prompts`.
      test_limit: test prompts of each domain.
      answers: folder that keeps the rounds, of these sizes or more; None is `out`.
      reach: choose among block sizes up to this far from the trained one (the paper's k).
      sizes: choose among these block sizes instead.
      builder: of the trees; a chain verifies the whole block (the paper).
      budget: verification budget of the trees; a chain ignores it.
      label: what makes a block size best: tokens per round (`acceptance`, the paper) or tokens per
        second (`speed`).
      times: JSON file of round times, see `block_costs`; measured if the file is missing, which
        needs a quiet machine. None uses times.json in `out` for the label `speed`, else no times.
      objective: `label` trains on the best size, the smallest of ties (the paper); `regret`
        minimises the expected loss of score, so that ties and nearly best sizes count as such.
      scale: scaling of the logits, see `BlockPilotConfig`.
      reduction: which part of the logits is read, see `BlockPilotConfig`.
      rank: logits that `top` reads, or axes of a projection.
      random: use random axes instead of principal ones.
      width: hidden units of the network's layers.
      layers: of the network.
      epochs: passes over the training prompts. The paper does not give epochs, batch, rate or
        weight decay.
      batch: prompts per gradient step.
      rate: learning rate of AdamW.
      weight_decay: of AdamW.
      limit: prompts of each domain.
      max_new_tokens: of each answer.
      temperature: of the answers.
      samples: answers of each prompt, with different seeds, for temperatures above 0. A size's score
        is that of all of them together.
      seed: of initial weights, dropout, order and shuffles.
    """

    out: Path
    held_out: Path | None = None
    test_limit: int | None = 30
    answers: Path | None = None
    reach: int = 2
    sizes: tuple[int, ...] = ()
    builder: str = "chain"
    budget: int = 32
    label: Literal["acceptance", "speed"] = "acceptance"
    times: Path | None = None
    objective: Literal["label", "regret"] = "label"
    scale: Literal["raw", "softmax", "zscore", "l2"] = "raw"
    reduction: Literal["all", "top", "projection"] = "all"
    rank: int = 256
    random: bool = False
    width: int = 2048
    layers: int = 2
    epochs: int = 15
    batch: int = 32
    rate: float = 1e-4
    weight_decay: float = 0.01
    limit: int | None = 120
    max_new_tokens: int = 96
    temperature: float = 0.0
    samples: int = 1
    seed: int = 0


class BlockPilotProblem(NamedTuple):
    """The data that the predictor is trained on and judged by.

    Attributes:
      params: target and drafter.
      drafter: its name.
      trained: the block size that the drafter was trained for.
      answers: to all prompts.
      parts: numbers of the training, validation and test prompts.
      times: of rounds and predictions, or None.
    """

    params: Params
    drafter: str
    trained: int
    answers: Answers
    parts: tuple[np.ndarray, np.ndarray, np.ndarray]
    times: BlockCosts | None

    def score(self, label: str, single: bool = False) -> np.ndarray:
        """Score the block sizes: float64 [P, C], tokens per round or per modelled second.

        Args:
          label: `acceptance` (per round) or `speed` (per second).
          single: use the times of rounds that are compiled for one size.
        """
        if label == "acceptance":
            return self.answers.length
        costs = self.times.single if single else self.times.chosen
        return self.answers.tokens / self.answers.seconds(costs)


def load_problem(options: BlockPilotOptions) -> BlockPilotProblem:
    """Answer all prompts and measure the times, or read those that an earlier run left.

    Raises:
      ValueError, OSError: prompts, options or checkpoints are unusable.
    """
    params = options.load()
    drafter, config = params.spec.drafters[0]
    if not hasattr(config, "block_size"):
        raise ValueError(f"drafter {options.drafter!r} drafts no blocks: give dflash or jetspec")
    sizes = options.sizes or neighbourhood(config.block_size, options.reach)
    if options.samples < 1 or (options.samples > 1 and not options.temperature):
        raise ValueError(
            f"samples is {options.samples} at temperature {options.temperature:g}: give 1, or a "
            "temperature above 0, at which texts differ"
        )
    settings = {
        "builder": options.builder,
        "budget": options.budget,
        "max_new_tokens": options.max_new_tokens,
        "temperature": options.temperature,
        "samples": options.samples,
    }
    folder = options.answers or options.out

    def answered(path, limit, name):
        prompts = dataclasses.replace(options, prompts=path, limit=limit).read(params)
        return answer(params, drafter, prompts, sizes, folder / f"{name}.jsonl", **settings)

    answers = answered(options.prompts, options.limit, "train")
    parts = split_prompts(answers.domains, test=options.held_out is None)
    if options.held_out is not None:
        test = answered(options.held_out, options.test_limit, "test")
        parts = (*parts[:2], len(answers.domains) + np.arange(len(test.domains)))
        answers = answers.joined(test)
    return BlockPilotProblem(
        params, drafter, config.block_size, answers, parts, _times(params, drafter, sizes, options)
    )


def _times(params, drafter: str, sizes, options: BlockPilotOptions) -> BlockCosts | None:
    path = options.times or (options.out / "times.json" if options.label == "speed" else None)
    if path is None:
        return None
    if not path.is_file():
        names = ("target", "drafter", "dtype", "builder", "budget", "width", "layers", "rank")
        given = {name: getattr(options, name) for name in names}
        save_block_costs(
            measure_blocks(params, drafter, BlockCostsOptions(path, tuple(sizes), **given)), path
        )
    return load_block_costs(path, sizes)
