"""Let a target continue prompts, and keep what drafters learn from: tokens, features and final hidden states.

    python -m training.rollouts --data corpus.jsonl.gz --model jaxspec/zoo/mini --out runs/rollouts --shards 16

Prompts are cut from the training text: a question up to `Answer:` in the domain `math`, a short passage elsewhere. Running the
command again makes only the shards that are missing.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from jaxspec.config import TargetConfig
from jaxspec.state import KVCache
from jaxspec.targets.transformer import Transformer
from training.data import DataError, load_tokenizer, read_documents
from training.export import load_target

ANSWER = "Answer:"
SEGMENT = 64


@dataclasses.dataclass
class RolloutOptions:
    """Options of the rollout recipe.

    Attributes:
      data: JSON Lines of {"domain", "text"} to cut prompts from.
      model: folder of an exported target.
      out: folder for the shards.
      shards: files to make.
      rows: sequences in a shard, generated together.
      length: tokens of a sequence, prompt included.
      prompt_tokens: shortest and longest prompt.
      feature_layers: target layers whose outputs are kept.
      domains: share of each domain.
      temperatures: drawn uniformly, one a sequence.
      seed: of prompts and samples.
    """

    data: Path
    model: Path
    out: Path
    shards: int = 16
    rows: int = 256
    length: int = 256
    prompt_tokens: tuple[int, int] = (32, 112)
    feature_layers: tuple[int, ...] = (1, 3, 5)
    domains: dict[str, float] = dataclasses.field(default_factory=lambda: {"math": 0.4, "code": 0.3, "prose": 0.3})
    temperatures: tuple[float, ...] = (0.0, 0.0, 0.7, 1.0)
    seed: int = 0


@functools.partial(jax.jit, static_argnames=("config", "feature_layers", "eos"))
def generate(params, prompts, prompt_length, temperature, key, *, config: TargetConfig, feature_layers, eos: int):
    """Continue `prompts` to the end of their rows, all rows in step: a position takes the prompt's token or a sampled one.

    Args:
      prompts: int32 [B, S]; only the first `prompt_length` [B] tokens of a row are read.
      temperature: float32 [B]; 0 is greedy.

    Returns:
      tokens int32 [B, S] (`eos` to the end after the first generated one), features float16 [B, S - 1, len * E], and hidden
      float16 [B, S - 1, E] after the final norm: position p predicts token p + 1.
    """
    model = Transformer(config)
    batch, length = prompts.shape
    columns = jnp.concatenate([prompts[:, 1:], prompts[:, :1]], axis=1).T

    def step(carry, inputs):
        cache, token, done = carry
        position, given, step_key = inputs
        out = model.apply(params, token[:, None], jnp.full((batch, 1), position), cache, feature_layers=feature_layers)
        rows = [
            jax.lax.dynamic_update_slice(old, new.swapaxes(2, 3), (0, 0, 0, position, 0))
            for old, new in ((cache.k, out.k), (cache.v, out.v))
        ]
        hidden = out.hidden[:, 0]
        logits = model.apply(params, hidden, method="logits")
        sampled = jax.random.categorical(step_key, logits / jnp.maximum(temperature, 1e-6)[:, None])
        sampled = jnp.where(temperature > 0, sampled, jnp.argmax(logits, -1))
        chosen = jnp.where(position + 1 < prompt_length, given, jnp.where(done, eos, sampled)).astype(jnp.int32)
        done = done | ((position + 1 >= prompt_length) & (chosen == eos))
        kept = out.features[:, 0].astype(jnp.float16), hidden.astype(jnp.float16)
        return (KVCache(*rows, jnp.full(batch, position + 1)), chosen, done), (chosen, *kept)

    positions, keys = jnp.arange(length - 1), jax.random.split(key, length - 1)
    empty = jnp.zeros((config.num_layers, batch, config.num_kv_heads, 0, config.head_dim))
    carry, parts = (KVCache(empty, empty, jnp.zeros(batch, jnp.int32)), prompts[:, 0], jnp.zeros(batch, bool)), []
    for start in range(0, length - 1, SEGMENT):
        # Attention reads the whole capacity, so let it grow with the text.
        cache, token, done = carry
        grown = [jnp.pad(rows, ((0, 0), (0, 0), (0, 0), (0, SEGMENT), (0, 0))) for rows in (cache.k, cache.v)]
        now = slice(start, min(start + SEGMENT, length - 1))
        inputs = (positions[now], columns[now], keys[now])
        carry, kept = jax.lax.scan(step, (KVCache(*grown, cache.length), token, done), inputs)
        parts.append(kept)
    tokens, features, hidden = (jnp.concatenate(part).swapaxes(0, 1) for part in zip(*parts, strict=True))
    return jnp.concatenate([prompts[:, :1], tokens], axis=1), features, hidden


class Prompts:
    """Random prompts from documents; `prompts(shard)` depends on the seed and the shard alone."""

    def __init__(self, documents: dict[str, list[str]], tokenizer, options: RolloutOptions):
        unknown = sorted(set(options.domains) - set(documents))
        if unknown:
            raise DataError(f"the data has no domain {unknown[0]!r}: it has {', '.join(sorted(documents))}")
        self.documents, self.tokenizer, self.options = documents, tokenizer, options
        self.names = sorted(options.domains)

    def __call__(self, shard: int):
        """(prompts int32 [rows, length], their lengths [rows], index of the domain in `names` [rows], temperature [rows])."""
        o, generator = self.options, np.random.default_rng((self.options.seed, shard))
        share = np.asarray([o.domains[name] for name in self.names])
        domain = generator.choice(len(self.names), o.rows, p=share / share.sum())
        ids = [self._prompt(self.names[d], generator) for d in domain]
        lengths = np.asarray([len(row) for row in ids], np.int32)
        prompts = np.zeros((o.rows, o.length), np.int32)
        for row, found in zip(prompts, ids, strict=True):
            row[: len(found)] = found
        return prompts, lengths, domain.astype(np.uint8), generator.choice(np.asarray(o.temperatures, np.float32), o.rows)

    def _prompt(self, domain: str, generator) -> list[int]:
        low, high = self.options.prompt_tokens
        while True:
            texts = self.documents[domain]
            text = texts[generator.integers(len(texts))]
            if ANSWER in text and domain == "math":
                ids = self.tokenizer.encode(text[: text.index(ANSWER) + len(ANSWER)], add_special_tokens=False).ids
                if len(ids) <= high:
                    return ids
                continue
            start = generator.integers(max(len(text) - 8 * high, 1))
            # A passage starts at a line's beginning, as a prompt would.
            start = text.rfind("\n", 0, start) + 1
            ids = self.tokenizer.encode(text[start : start + 8 * high], add_special_tokens=False).ids
            size = generator.integers(low, min(high, 96) + 1)
            if len(ids) >= size:
                return ids[:size]


def main(options: RolloutOptions) -> None:
    """Write the shards that are missing, and meta.json."""
    target, tokenizer = load_target(options.model), load_tokenizer(options.model)
    config, (eos,) = target.spec.target, target.spec.eos
    prompts = Prompts(read_documents(options.data), tokenizer, options)
    options.out.mkdir(parents=True, exist_ok=True)
    meta = {"feature_layers": options.feature_layers, "domains": prompts.names, "eos": eos, "length": options.length}
    (options.out / "meta.json").write_text(json.dumps(meta) + "\n")
    for shard in tqdm(range(options.shards), desc="rollouts"):
        path = options.out / f"shard-{shard:03d}"
        if path.is_dir():
            continue
        began = time.monotonic()
        rows, lengths, domain, temperature = prompts(shard)
        key = jax.random.fold_in(jax.random.key(options.seed), shard)
        made = generate(
            target.target, rows, lengths, temperature, key, config=config, feature_layers=options.feature_layers, eos=eos
        )
        tokens, features, hidden = map(np.asarray, made)
        end = text_end(tokens, lengths, eos)
        arrays = {"prompt": lengths, "end": end, "domain": domain, "temperature": temperature}
        write_shard(path, {"tokens": tokens.astype(np.uint16), "features": features, "hidden": hidden, **arrays})
        made_tokens = int((end - lengths).sum())
        tqdm.write(f"shard {shard}: {made_tokens} tokens, {made_tokens / (time.monotonic() - began):.0f} a second")


def text_end(tokens: np.ndarray, prompt: np.ndarray, eos: int) -> np.ndarray:
    """int32 [B]: one past the first generated `eos`, or the row's length."""
    generated = (tokens == eos) & (np.arange(tokens.shape[1]) >= prompt[:, None])
    return np.where(generated.any(1), generated.argmax(1) + 1, tokens.shape[1]).astype(np.int32)


def write_shard(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """One .npy file an array, so that they can be mapped; the folder appears whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(partial / f"{name}.npy", array)
    partial.rename(path)


if __name__ == "__main__":
    import tyro

    main(tyro.cli(RolloutOptions))
