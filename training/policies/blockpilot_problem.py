"""What BlockPilot's predictor is trained on: options, answers, their split, and the times that
rounds are charged.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

import jaxspec
from jaxspec.bench.measure.prompt_files import read_prompts
from jaxspec.core.params import Params
from jaxspec.io.tokenizer import load_tokenizer
from training.policies.block_costs import (
    BlockCosts,
    BlockCostsOptions,
    load_block_costs,
    measure_blocks,
    save_block_costs,
)
from training.policies.blockpilot_data import Answers, answer, neighbourhood, split_prompts


@dataclasses.dataclass
class BlockPilotOptions:
    """Options of the training.

    Attributes:
      prompts: JSON Lines, see `jaxspec.bench.measure.prompt_files.read_prompts`. out: folder of everything.
      held_out: the same, of the test; None: a fifth of `prompts`. test_limit: prompts of each
        domain.
      answers: folder where rounds are kept, of these sizes or more (None: `out`).
      target: `mini`, a directory or a hub id. drafter: a block drafter that ships with it, a
        directory or a hub id.
      reach: block sizes from the trained one less this to it plus this (the paper's k). sizes:
        these instead.
      builder, budget: of the trees; a chain verifies the whole block (the paper).
      label: of the block sizes, by tokens a round (`acceptance`, the paper) or a second (`speed`).
      times: JSON file of what rounds take, see `block_costs`; measured if it is not there, which
        wants a quiet machine. None: one in `out` where the label is `speed`, else no times.
      objective: what is trained for: the `label` (the paper), the smallest block of equals; or
        small `regret`, where equals are equal and a size that is nearly best is nearly right.
      scale, reduction: what is read of the logits, see `BlockPilotConfig`. rank: numbers of
        `top`, or axes of a projection.
      random: random axes instead of principal ones.
      width, layers: of the network. epochs, batch, rate, weight_decay: of AdamW; the paper names
        none of them.
      limit: prompts of each domain. chat: they are users' chat messages. max_new_tokens: of each
        answer.
      seed: of first weights, dropout, order and shuffles. dtype: of target and drafter; None picks
        what suits the device.
    """

    prompts: Path
    out: Path
    held_out: Path | None = None
    test_limit: int | None = 30
    answers: Path | None = None
    target: str = "mini"
    drafter: str = "dflash"
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
    chat: bool = False
    max_new_tokens: int = 96
    seed: int = 0
    dtype: str | None = None


class BlockPilotProblem(NamedTuple):
    """What is learned from, and what it is judged by.

    Attributes:
      params, method: target and drafter. trained: the drafter's own block size.
      answers: to all prompts. parts: numbers of training, validation and test prompts. times: or
        None.
    """

    params: Params
    method: str
    trained: int
    answers: Answers
    parts: tuple[np.ndarray, np.ndarray, np.ndarray]
    times: BlockCosts | None

    def score(self, label: str, single: bool = False) -> np.ndarray:
        """float64 [P, C], tokens a round or a modelled second; `single`: in rounds compiled for
        one size.
        """
        if label == "acceptance":
            return self.answers.length
        costs = self.times.single if single else self.times.chosen
        return self.answers.tokens / self.answers.seconds(costs)


def load_problem(options: BlockPilotOptions) -> BlockPilotProblem:
    """Answer all prompts, or read the answers; the same of the times.

    Raises:
      ValueError, OSError: unusable prompts, options or checkpoints.
    """
    params = jaxspec.load(options.target, drafter=options.drafter, dtype=options.dtype)
    method, config = params.spec.drafters[0]
    if not hasattr(config, "block_size"):
        raise ValueError(f"drafter {options.drafter!r} drafts no blocks: choose dflash or jetspec")
    sizes = options.sizes or neighbourhood(config.block_size, options.reach)
    settings = {
        "builder": options.builder,
        "budget": options.budget,
        "max_new_tokens": options.max_new_tokens,
    }
    tokenizer = load_tokenizer(params.spec.tokenizer) if params.spec.tokenizer else None
    folder = options.answers or options.out

    def answered(path, limit, name):
        prompts = read_prompts(path, tokenizer, limit=limit, chat=options.chat)
        return answer(params, method, prompts, sizes, folder / f"{name}.jsonl", **settings)

    answers = answered(options.prompts, options.limit, "train")
    parts = split_prompts(answers.domains, test=options.held_out is None)
    if options.held_out is not None:
        test = answered(options.held_out, options.test_limit, "test")
        parts = (*parts[:2], len(answers.domains) + np.arange(len(test.domains)))
        answers = answers.joined(test)
    return BlockPilotProblem(
        params, method, config.block_size, answers, parts, _times(params, method, sizes, options)
    )


def _times(params, method: str, sizes, options: BlockPilotOptions) -> BlockCosts | None:
    path = options.times or (options.out / "times.json" if options.label == "speed" else None)
    if path is None:
        return None
    if not path.is_file():
        names = ("target", "drafter", "dtype", "builder", "budget", "width", "layers", "rank")
        given = {name: getattr(options, name) for name in names}
        save_block_costs(
            measure_blocks(params, method, BlockCostsOptions(path, tuple(sizes), **given)), path
        )
    return load_block_costs(path, sizes)
