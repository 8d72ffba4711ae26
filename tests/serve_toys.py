"""A small serving engine, what requests get from it, and a plain forward pass to compare with."""

import jax.numpy as jnp
import numpy as np

from jaxspec.engine.plan import make_plan
from jaxspec.serve import make_engine
from jaxspec.serve.costs import Costs

PROMPT = tuple(b"def add(a, b):\n    return")
SAMPLED = dict(temperature=0.8, top_k=7, seed=5)


def make(params, **options):
    # Costs are made up, and the rule never stops drafting: no test depends on a time.
    costs = Costs((1.0, 1.2, 1.5), (5.0,) * 3)
    shape = dict(slots=2, capacity=192, budget=8, edges=(2, 4, 16), rounds=8, rule="fixed")
    return make_engine(params, costs=costs, **shape | options)


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
    plan = make_plan(params.spec, make(params)._device.config)
    text = jnp.asarray([[*prompt, *tokens]], jnp.int32)
    out = plan.target.apply(params.target, text, jnp.arange(text.shape[1])[None])
    logits = plan.target.apply(params.target, out.hidden, method="logits")
    logits = np.asarray(logits[0, len(prompt) - 1 : -1], np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))
