"""A small serving engine, what requests get from it, and a plain forward pass to compare with."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.call.resolve import resolve_config
from jaxspec.core.params import Spec
from jaxspec.round.plan import make_plan
from jaxspec.serve import make_engine
from jaxspec.tuner.serving.costs import Costs

PROMPT = tuple(b"def add(a, b):\n    return")
SAMPLED = dict(temperature=0.8, top_k=7, seed=5)


def make(params, *given, factory=make_engine, **options):
    # Costs are made up, and the rule never stops drafting: no test depends on a time.
    costs = Costs((1.0, 1.5), (5.0, 5.0))
    # Engines of all test files take the same sizes, so that they share compiled programs.
    shape = dict(slots=2, capacity=320, budget=8, edges=(2, 16), rule="fixed", lookup=False)
    # Log-probabilities too: they are other programs, though few tests ask for any.
    shape |= dict(rounds=8, visit_seconds=None, max_logprobs=20)
    return factory(params, *given, costs=costs, **shape | options)


def run(engine, *requests):
    """Return (tokens, log-probabilities, whether each was drafted, most at once) by request."""
    ids, found = [engine.submit(one) for one in requests], {}
    while not engine.idle:
        for update in engine.visit():
            tokens, logprobs, drafted, most = found.setdefault(update.id, ([], [], [], [0]))
            tokens += update.tokens
            logprobs += update.logprobs
            drafted += update.drafted
            most[0] = max(most[0], len(update.tokens))
    return [found[id] for id in ids]


def score(params, prompt, tokens):
    """Score the tokens after a prompt by one causal pass without a cache: float64 [tokens, V]."""
    text = np.zeros((1, 128), np.int32)  # of one size; no token sees those after it
    end = len(prompt) + len(tokens)
    text[0, :end] = [*prompt, *tokens]
    logits = _logits(params.target, text, params.spec)
    logits = np.asarray(logits[0, len(prompt) - 1 : end - 1], np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@functools.partial(jax.jit, static_argnames="spec")
def _logits(variables, text, spec: Spec):
    plan = make_plan(spec, resolve_config(spec, drafter="ar")[0])
    out = plan.target.apply(variables, text, jnp.arange(text.shape[1])[None])
    return plan.target.apply(variables, out.hidden, method="logits")
