"""A chat of 20 turns that grows to 8,000 tokens, on a tiny random model; prints what it compiled."""

import contextlib
import dataclasses
import io
import json

import jax
import jax.numpy as jnp

from jaxspec.bench.architectures import random_params
from jaxspec.cli.chat import Chat
from jaxspec.core.config import TargetConfig
from jaxspec.core.params import Spec
from jaxspec.drafters.dflash.shapes import head_config
from jaxspec.io.hub import ZOO
from jaxspec.tuner.tuner import process_tuner

TURNS = 20
counts = {"compiled": 0, "missed": 0}


def count_compiled(event, seconds, **_):
    counts["compiled"] += event == "/jax/core/compile/backend_compile_duration"


def count_missed(event, **_):
    counts["missed"] += event == "/jax/compilation_cache/cache_misses"


def make_params():
    target = TargetConfig(
        hidden_size=32,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=32,
        ffn_size=32,
        vocab_size=4096,
        max_positions=16384,
        family="qwen3",
    )
    head = head_config(target, block_size=8, num_layers=1)
    head = dataclasses.replace(head, feature_layers=(0,))
    spec = Spec(target, (("jetspec", head),), tokenizer=str(ZOO / "mini"))
    # The first call of a model on a CPU arranges its weights, with a program for each shape.
    params = random_params(spec, jnp.float32)
    process_tuner().lay_out(params, "jetspec", 1)
    return params


def main():
    chat = Chat(make_params(), {"max_new_tokens": 8, "drafter": None})
    jax.monitoring.register_event_duration_secs_listener(count_compiled)
    jax.monitoring.register_event_listener(count_missed)
    question = "How many apples are left of the four? " * 42
    for _ in range(TURNS):
        with contextlib.redirect_stdout(io.StringIO()):
            chat.answer(question)
    print(json.dumps(counts | {"tokens": len(chat.tokenizer.chat(chat.messages))}))


if __name__ == "__main__":
    main()
