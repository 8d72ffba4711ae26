"""A corpus, a tokenizer and recipe options small enough for tests."""

import dataclasses
import gzip
import json
from pathlib import Path

from training.data.pipeline import DataOptions
from training.drafters.model_options import ModelOptions
from training.regenerate import RegenerateOptions
from training.run.loop import LoopOptions
from training.run.optimizer import OptimizerOptions
from training.tokenizer import TokenizerOptions
from training.train_drafter import DrafterOptions
from training.train_target import TargetOptions

SIZES = {
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 8,
    "ffn_size": 16,
}


def write_corpus(path: Path) -> Path:
    """Three domains of a few hundred repetitive lines."""
    sums = (f"Question: {i} + {i}?\nAnswer: {i} + {i} = {2 * i}.\n#### {2 * i}" for i in range(120))
    code = "".join(f"def f{i}(x):\n    return x * {i}\n" for i in range(150))
    prose = "".join(f"On day {i} the sea was calm and the wind was low.\n" for i in range(150))
    records = [{"domain": "math", "text": text} for text in sums]
    records += [{"domain": "code", "text": code}, {"domain": "prose", "text": prose}]
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    return path


def tokenizer_options(data: Path, out: Path) -> TokenizerOptions:
    return TokenizerOptions(data, out, vocab_size=300, max_positions=128)


def target_options(data: Path, tokenizer: Path, run: Path, steps: int = 2) -> TargetOptions:
    loop = LoopOptions(run, steps=steps, save_every=1, eval_every=100, parts=1)
    rows = {"math": 2, "code": 1, "prose": 1}
    return TargetOptions(
        data,
        data,
        tokenizer,
        loop,
        rows=rows,
        length=16,
        max_positions=128,
        optimizer=OptimizerOptions(warmup=1),
        **SIZES,
    )


def regenerate_options(data: Path, model: Path, out: Path) -> RegenerateOptions:
    return RegenerateOptions(
        str(model),
        data,
        out,
        limit=12,
        max_new_tokens=24,
        prompt_tokens=(4, 12),
        temperatures=(0.0, 1.0),
        batch=4,
    )


def drafter_options(
    model: Path, data: Path, run: Path, out: Path, kind: str = "jetspec", **changes
) -> DrafterOptions:
    options = DrafterOptions(
        data=DataOptions((data,), length=48),
        out=out,
        loop=LoopOptions(run, steps=2, save_every=1, eval_every=100, parts=2),
        target=str(model),
        model=ModelOptions(kind, block_size=4, num_layers=1, feature_layers=(0, 1)),
        optimizer=OptimizerOptions(warmup=1),
        batch=4,
        anchors=3,
    )
    return dataclasses.replace(options, **changes)
