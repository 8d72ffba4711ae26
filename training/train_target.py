"""Train a small target from scratch on text.

    python -m jaxspec.training.train_target --data corpus.jsonl.gz --heldout heldout.jsonl.gz \\
        --tokenizer jaxspec/zoo/mini --loop.run runs/target --loop.steps 640

Run the same command again to continue after an interruption. `python -m jaxspec.training.export`
writes the result in Hugging Face form. `--preset mini-moe` trains a mixture of experts of the same
text, whose layers have the numbers that the drafters of `mini` read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxspec.core.config import MoEConfig, TargetConfig
from jaxspec.core.rope import Rope
from jaxspec.core.runtime.processes import connect
from jaxspec.targets.transformer import Transformer

from .data.documents import (
    MixedBatches,
    cut_windows,
    load_bpe_tokenizer,
    make_token_stream,
    read_documents,
)
from .run.command import one_line_errors
from .run.loop import LoopOptions, fit
from .run.optimizer import OptimizerOptions, make_optimizer, zero_residual
from .tokenizer import EOS

# (options of the loop, other options) that differ from the defaults, whose sizes are `mini`'s.
PRESETS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mini": ({}, {}),
    # In the class of `mini` by size: 5.7 million parameters, of which a token uses 2.4 million.
    "mini-moe": (
        dict(steps=200, save_every=25, eval_every=100),
        dict(
            rows={"math": 3, "code": 3, "prose": 2},
            hidden_size=192,
            num_layers=5,
            num_heads=3,
            ffn_size=384,
            num_experts=8,
            experts_per_token=2,
            expert_ffn_size=192,
        ),
    ),
}


# Options of a mixture of experts, as its config names them.
_EXPERTS = ("num_experts", "experts_per_token", "expert_ffn_size")


@dataclasses.dataclass
class TargetOptions:
    """Options of the target recipe.

    Attributes:
      data: JSON Lines of {"domain", "text"} to train on.
      heldout: JSON Lines of {"domain", "text"} to evaluate on.
      tokenizer: folder with tokenizer.json.
      loop: see `training.run.loop.LoopOptions`.
      rows: number of windows of each domain in a batch.
      length: tokens predicted per window. Three of four steps split each window into two halves,
        which is cheaper.
      hidden_size ... rope_theta: the target's size, see `jaxspec.core.config.TargetConfig`.
      num_experts, experts_per_token, expert_ffn_size: of a mixture of experts (Qwen3-MoE), see
        `jaxspec.core.config.MoEConfig`; None for a dense target.
      optimizer: see `training.run.optimizer.OptimizerOptions`.
      seed: seed of the initial weights and the data order.
    """

    data: Path
    heldout: Path
    tokenizer: Path
    loop: LoopOptions
    rows: dict[str, int] = dataclasses.field(
        default_factory=lambda: {"math": 5, "code": 6, "prose": 5}
    )
    length: int = 512
    hidden_size: int = 320
    num_layers: int = 6
    num_heads: int = 5
    num_kv_heads: int = 1
    head_dim: int = 64
    ffn_size: int = 960
    max_positions: int = 2048
    rope_theta: float = 10000.0
    num_experts: int | None = None
    experts_per_token: int | None = None
    expert_ffn_size: int | None = None
    optimizer: OptimizerOptions = dataclasses.field(default_factory=OptimizerOptions)
    seed: int = 0

    def target_config(self, vocab_size: int) -> TargetConfig:
        """Return the config of the target to train."""
        return make_target_config(vars(self) | {"vocab_size": vocab_size})


def make_target_config(recipe: dict[str, Any]) -> TargetConfig:
    """Make the target's config from the options of its run and `vocab_size`; others are ignored.

    Raises:
      ValueError: some options of a mixture of experts are missing, or tokens use too many experts.
    """
    names = {field.name for field in dataclasses.fields(TargetConfig)}
    sizes = {name: value for name, value in recipe.items() if name in names}
    sizes["rope"] = Rope(recipe["rope_theta"])
    experts = [recipe.get(name) for name in _EXPERTS]
    if any(experts):
        if not all(experts) or experts[1] > experts[0]:
            raise ValueError(
                f"experts are {experts}: give num_experts, as many or fewer experts_per_token, "
                "and expert_ffn_size"
            )
        sizes |= {
            "family": "qwen3_moe",
            "moe": MoEConfig(**dict(zip(_EXPERTS, experts, strict=True))),
        }
    return TargetConfig(**sizes, tie_embeddings=True)


def init_target(config: TargetConfig, seed: int):
    """Initialise parameters, with zero residual projections: layers start as the identity."""
    tokens = jnp.zeros((1, 2), jnp.int32)
    return zero_residual(jax.jit(Transformer(config).init)(jax.random.key(seed), tokens, tokens))


def make_next_token_loss(config: TargetConfig):
    """Make `loss(params, None, windows int32 [B, T + 1]) -> {"loss": (sum, tokens)}`.

    The sum is that of cross-entropies in nats.
    """
    model = Transformer(config)

    def loss(params, _, windows):
        inputs, labels = windows[:, :-1], windows[:, 1:]
        positions = jnp.broadcast_to(jnp.arange(inputs.shape[1]), inputs.shape)
        logits = model.apply(params, model.apply(params, inputs, positions).hidden, method="logits")
        values = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return {"loss": (values.sum(), jnp.float32(values.size))}

    return loss


def make_heldout_loss(loss, windows: dict[str, np.ndarray], rows: int = 16, limit: int = 96):
    """Make `evaluate(params) -> {"heldout_<domain>": nats per token}`.

    It uses at most `limit` windows of each domain.
    """
    jitted = jax.jit(lambda params, batch: loss(params, None, batch)["loss"])

    def evaluate(params):
        result = {}
        for domain, all_windows in windows.items():
            chosen = all_windows[
                np.linspace(0, len(all_windows) - 1, min(limit, len(all_windows))).astype(np.int32)
            ]
            pairs = [
                jitted(params, chosen[i : i + rows].astype(np.int32))
                for i in range(0, len(chosen), rows)
            ]
            total, tokens = np.sum(pairs, axis=0)
            result[f"heldout_{domain}"] = float(total / tokens)
        return result

    return evaluate


def mix_lengths(batches):
    """Cut each window [T + 1] of `batches` into two of [T / 2 + 1] on three of four steps."""

    def at(step: int) -> np.ndarray:
        windows = batches(step)
        half = windows.shape[1] // 2
        return (
            windows
            if step % 4 == 3
            else np.concatenate([windows[:, : half + 1], windows[:, half:]])
        )

    return at


def main(options: TargetOptions) -> None:
    """Train and evaluate on held-out text; the last checkpoint stays in the run's folder."""
    connect(options.loop.hosts)
    tokenizer = load_bpe_tokenizer(options.tokenizer)
    eos = tokenizer.token_to_id(EOS)

    def windows(path):
        return {
            name: cut_windows(make_token_stream(texts, tokenizer, eos), options.length)
            for name, texts in read_documents(path).items()
        }

    config = options.target_config(tokenizer.get_vocab_size())
    loss, params = make_next_token_loss(config), init_target(config, options.seed)
    optimizer = make_optimizer(params, options.loop.steps, options.optimizer)
    recipe = {
        name: value
        for name, value in vars(options).items()
        if name not in ("loop", "data", "heldout", "tokenizer")
    }
    recipe |= {
        "optimizer": vars(options.optimizer),
        "steps": options.loop.steps,
        "vocab_size": config.vocab_size,
    }
    batches = mix_lengths(MixedBatches(windows(options.data), options.rows, options.seed))
    evaluate = make_heldout_loss(loss, windows(options.heldout))
    fit(params, optimizer, loss, batches, options.loop, recipe, evaluate=evaluate)


def parse_options(arguments: Sequence[str] | None = None) -> TargetOptions:
    """Parse options from a command line; `--preset NAME` gives the defaults of all others."""
    import argparse

    import tyro

    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", choices=sorted(PRESETS), default="mini")
    chosen, rest = first.parse_known_args(arguments)
    needed = dict.fromkeys(("data", "heldout", "tokenizer"), tyro.MISSING)
    steps, sizes = PRESETS[chosen.preset]
    default = TargetOptions(**needed, loop=LoopOptions(tyro.MISSING, **steps), **sizes)
    described = f"Train a target. --preset NAME gives the defaults: {', '.join(PRESETS)}."
    return tyro.cli(TargetOptions, default=default, args=rest, description=described)


if __name__ == "__main__":
    with one_line_errors():
        main(parse_options())
