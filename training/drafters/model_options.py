"""The sizes of the drafter to train, as a command line gives them."""

from __future__ import annotations

import dataclasses
from typing import Literal

from jaxspec.core.config import TargetConfig
from jaxspec.drafters import records


def find_default_kind() -> str:
    """Find the drafter that decoding prefers if all are loaded."""
    return min(records(), key=lambda record: record.preference).name


@dataclasses.dataclass
class ModelOptions:
    """Sizes and options of the drafter; None is the target's value, or else the method's.

    Attributes:
      kind: `dflash` (slots see the whole block), `jetspec` (slot i sees slots 0..i), or another of
        `training.drafters`.
      block_size: slots of a block drafter's block, the anchor included.
      num_layers: decoder layers.
      feature_layers: target layers, 0-based, whose outputs are the context; None spreads
        `num_features` evenly as DFlash does.
      num_features: number of layers to choose if `feature_layers` is None.
      num_heads, num_kv_heads, head_dim, ffn_size: sizes of a decoder layer.
      mask_token: row of the target's embedding table that fills a block: a token that no text
        holds. None looks for the tokenizer's own mask token.
      score_temperature: how decoding scores paths, greedily and with sampling, see
        `jaxspec.core.config.DrafterConfig`. Values below 1 suit drafters trained partly on sampled
        text, which are less confident of greedy text than they should be.
      builder: builder of calls that name none, which a block drafter's files keep, such as
        `expand/w7`; None for the method's.
      draft_vocab: number of tokens that can be drafted, the most frequent ones of the data; None
        for all of the target's. Other engines read such a `dflash` drafter in the speculators
        schema, and cannot read such a `jetspec` head.
      slots: tokens per forward (`specblock` 4, `parallelspec` 4, `falcon` 2), heads (`medusa` 4).
      blocks: number of consecutive blocks in decoding (`specblock` 2, `falcon` 3).
      depth: longest drafted path of `eagle3` and `draft_model`, 8, and of `griffin`, 6.
      hidden_size: width of a `draft_model` model, half the target's.
      lstm_size: width of `falcon`'s LSTM.
      own_projection: `medusa` heads have output projections of their own.
      prefix_broadcast: ablation of `specblock`.
      shift: ablation of `specblock`.
      match_layers: layers of `specblock` have the target's q/k norm and width of heads, as in the
        paper; the released code has neither, and cannot read such a drafter.
      rank_top: largest logits that `specblock`'s rank head sees, 10; 0 for all.
      markov_rank: width of `dspark`'s Markov head, 256; 0 for none.
      markov_head: `vanilla` (if None), `gated` or `rnn`, the kind of `dspark`'s Markov head.
      confidence: `dspark` has a confidence head.
      confidence_with_markov: which reads the previous token's row of the Markov head too.
      sample_from_anchor: the anchor's slot of `dspark` predicts the first token, so a block of
        `block_size` slots drafts as many tokens; otherwise one less, as `dflash` and `jetspec`.
      causal: `dspark` on a `jetspec` backbone, whose slot i sees slots 0..i.
      zero_residual: start with every layer as the identity, which suits the Muon recipes, instead
        of random weights.
    """

    kind: str = dataclasses.field(default_factory=find_default_kind)
    block_size: int = 16
    num_layers: int = 5
    feature_layers: tuple[int, ...] | None = None
    num_features: int = 5
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    ffn_size: int | None = None
    mask_token: int | None = None
    score_temperature: tuple[float, float] = (1.0, 1.0)
    builder: str | None = None
    zero_residual: bool = False
    draft_vocab: int | None = None
    slots: int | None = None
    blocks: int | None = None
    depth: int | None = None
    hidden_size: int | None = None
    lstm_size: int | None = None
    own_projection: bool = True
    prefix_broadcast: bool = True
    shift: bool = True
    match_layers: bool = False
    rank_top: int | None = None
    markov_rank: int | None = None
    markov_head: Literal["vanilla", "gated", "rnn"] | None = None
    confidence: bool = True
    confidence_with_markov: bool = True
    sample_from_anchor: bool = True
    causal: bool | None = None


def check_sizes(options: ModelOptions, target: TargetConfig) -> None:
    """Raise a ValueError if a size is out of range."""
    for name, low, high in (
        ("slots", 1, 32),
        ("blocks", 1, 32),
        ("depth", 1, 128),
        ("num_layers", 1, 128),
    ):
        value = getattr(options, name)
        if value is not None and not low <= value <= high:
            raise ValueError(f"{name} is {value}: give {low} to {high}")
    check_draft_vocab(options, target)


def check_draft_vocab(options: ModelOptions, target: TargetConfig) -> None:
    """Raise a ValueError if the target has no reduced draft vocabulary of that size."""
    if options.draft_vocab is not None and not 1 <= options.draft_vocab < target.vocab_size:
        raise ValueError(
            f"draft_vocab is {options.draft_vocab}: give 1 to {target.vocab_size - 1} tokens, "
            f"or None for the target's {target.vocab_size}"
        )
