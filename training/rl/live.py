"""The live environment: the same tasks with real forward passes and a clock, one text at a time.

Each round is first drafted to full depth, untimed, to get the observations. When the task verifies,
the decode loop runs the same round with the chosen depth and size, and that run is timed. Text and
reward are those of the real round. Everything else is the replay environment, which reads a record
of two positions: the last round's and this one's.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.call.options import group_options
from jaxspec.call.session import matmul_precision, prepare, run_prefill
from jaxspec.policies.rules.static import Constants
from jaxspec.round.context import make_round
from jaxspec.round.draft import draft
from jaxspec.round.grow import grow, show_tree
from jaxspec.round.loop import run
from jaxspec.round.stop_rule import show_pool

from ..policies.options import encode_prompts
from .environment import Data, Environment, Replay, RoundState
from .options import TextOptions, decode_options, sees_pool, static_policy


class Texts:
    """Greedy texts of prompts drawn at random, generated round by round.

    Args:
      params: target and drafter.
      prompts: token ids.
      options: of a record of these rounds.
      decide: the other policy's decisions, (scores [1, P], context [1]) -> (size index int [1, S]
        or None, steps int [1] or None), see `environment.Data`.
      seed: of the order of prompts.
    """

    def __init__(
        self,
        params,
        prompts: Sequence[list[int]],
        options: TextOptions,
        decide: Callable,
        seed: int = 0,
    ):
        self.params, self.prompts, self.options, self.decide = params, prompts, options, decide
        self.pool, self.rng = sees_pool(params, options), np.random.default_rng(seed)
        self.look = jax.jit(self._look, static_argnames="config")
        self.new_text()
        self.before = self.shown
        self.verify(0, 0)  # compiles; the first round of a text is not counted

    def new_text(self) -> None:
        """Begin a text and draft its first round."""
        prompt, options = self.prompts[self.rng.integers(len(self.prompts))], self.options
        policy = static_policy(options, 0 if self.pool else None)
        settings = decode_options(self.params, options)
        self.session = prepare(
            self.params,
            prompt,
            max_new_tokens=options.max_new_tokens,
            **group_options(policy=policy, **settings),
        )
        with matmul_precision(self.session):
            self.state = run_prefill(self.session)
        if bool(self.state.done.all()):
            raise ValueError(
                f"the answer to a prompt of {len(prompt)} tokens ends with its first token: "
                "leave the prompt out"
            )
        self._see()

    def verify(self, steps: int, size: int) -> tuple[int, float]:
        """Run the round with `steps` draft steps and `sizes[size]` rows, and draft the next one.

        Returns:
          (committed tokens, seconds).
        """
        controls = Constants(jnp.int32(steps), jnp.int32(self.options.sizes[size]))
        request = self.session.request.replace(controls=controls)
        emitted = int(self.state.emitted[0])
        with matmul_precision(self.session):
            began = time.perf_counter()
            state = jax.block_until_ready(
                run(self.params, request, self.state, jnp.int32(1), config=self.session.config)
            )
            seconds = time.perf_counter() - began
        self.before, self.state = self.shown, state
        if bool(state.done.all()):
            tokens = int(state.emitted[0]) - emitted
            self.new_text()
            return tokens, seconds
        self._see()
        return int(state.emitted[0]) - emitted, seconds

    def data(self, tokens: int, seconds: float, steps: int) -> Data:
        """Make a record of two positions, the last round's and this one's.

        All rounds in it have the given tokens and seconds.
        """
        scores, context = (np.concatenate(x) for x in zip(self.before, self.shown, strict=True))
        shape = (2, steps + 1, len(self.options.sizes))
        # The first position's text ends with its round, and a new text begins at the second one.
        replay = Replay(
            scores,
            np.full(shape, tokens),
            np.full(shape, seconds, np.float32),
            context,
            np.array([tokens, 1 << 30]),
            np.array([1]),
        )
        size, depth = zip(
            *(self.decide(*shown) for shown in (self.before, self.shown)), strict=True
        )
        size, depth = (None if x[0] is None else np.concatenate(x) for x in (size, depth))
        return jax.tree.map(jnp.asarray, Data(replay, size, depth))

    def _see(self) -> None:
        # Draft all steps, whatever the controls of the last round were.
        controls = Constants(jnp.int32(self.options.steps), jnp.int32(1))
        request = self.session.request.replace(controls=controls)
        with matmul_precision(self.session):
            scores = self.look(self.params, request, self.state, config=self.session.config)
        self.shown = np.asarray(scores), np.asarray(self.state.cache.length)

    def _look(self, params, request, state, config):
        round = make_round(params, request, config)
        drafted = draft(round, state, None)
        if self.pool:
            return show_pool(drafted.pool, drafted.scores).logprob
        tree = grow(round, state, drafted)
        return show_tree(round.growth, drafted, tree).logprob[:, 1:]


def make_live(task: Environment, steps: int) -> Environment:
    """Make a task that takes `Texts` in place of `Data` and runs one episode at a time.

    Args:
      task: the replay environment's task.
      steps: maximum draft steps.
    """
    step_in, place = jax.jit(task.step), jnp.ones(1, jnp.int32)

    def reset(texts: Texts, key, count):
        if count != 1:
            raise ValueError(
                f"{count} parallel episodes cannot be timed: give --parallel 1 with --live"
            )
        return task.reset(texts.data(1, 1.0, steps), key, 1)

    def step(texts: Texts, state: RoundState, action, key, rate):
        if not bool(task.verifies(state, action)[0]):
            return step_in(texts.data(1, 1.0, steps), state, action, key, rate)
        data, deep = texts.data(1, 1.0, steps), int(state.steps[0])
        size = int(action[0]) if data.size is None else int(data.size[1, deep])
        tokens, seconds = texts.verify(deep, size)
        state = state.replace(position=0 * place)
        return step_in(texts.data(tokens, seconds, steps), state, action, key, rate)

    return task._replace(reset=reset, step=step)


def load_texts(prompts: Path, header: dict, decide: Callable, seed: int) -> Texts:
    """Load the prompts of a file, and draft their texts with the settings of a record's header.

    Raises:
      ValueError, FileNotFoundError: the prompts are unusable.
    """
    names = {field.name for field in dataclasses.fields(TextOptions)} & header.keys()
    options = TextOptions(
        prompts=prompts, target=header["model"], **{name: header[name] for name in names}
    )
    params = options.load()
    return Texts(params, encode_prompts(params, options.read(params)), options, decide, seed)
