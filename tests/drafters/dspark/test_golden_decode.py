"""Greedy decode traces of DeepSpec's own code: the same tokens, drafts, confidences and lengths."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import golden, records
from slow_cases import slow_except

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.core.state import Nodes
from jaxspec.drafters.base import Committed, TargetHead
from jaxspec.drafters.registry import make_drafter, record_of
from jaxspec.policies.rules.dspark import make_dspark_threshold
from jaxspec.targets.transformer import Transformer

TRACES = records("dspark", "decode.json")
CONFIDENCE = 5e-6


@functools.cache
def load(model):
    target, drafter = golden("dspark", "target"), golden("dspark", model)
    return jaxspec.load(target, drafter={"dspark": drafter}, dtype="float32")


def generated(trace):
    return trace["output_ids"][len(trace["prompt"]) :]


def decode(trace, **options):
    stop = trace["stop_token_ids"] or ()
    options |= {"max_new_tokens": trace["max_new_tokens"], "stop": stop, "trace": True}
    return jaxspec.decode(
        load(trace["model"]), trace["prompt"], drafter="dspark", **group_options(**options)
    )


# Every head compiles a program without the threshold and one with it.
QUICK = [one for one in TRACES if one["model"] == "draft_dflash"]


@pytest.mark.parametrize("trace", slow_except(QUICK, TRACES), ids=lambda trace: trace["model"])
def test_the_same_text_round_for_round(trace):
    depth = load(trace["model"]).spec.drafter("dspark").depth
    options = {"builder": "chain", "budget": depth + 1}
    if limit := trace["confidence_threshold"]:
        options |= {"builder": "chain+confidence", "policy": make_dspark_threshold(limit)}
    out = decode(trace, **options)
    assert out.tokens == generated(trace)
    # The prefill gives the first token. Our last round counts what was emitted alone, and theirs
    # may be a round too many.
    left = len(out.tokens) - 1 - np.cumsum([0, *trace["acceptance_lengths"][:-1]])
    theirs = np.minimum(trace["acceptance_lengths"], left)
    assert [len(step.path) for step in out.rounds] == theirs[theirs > 0].tolist()
    for step, recorded in zip(out.rounds, trace["rounds"] or [], strict=False):
        assert list(map(int, step.tree.token)) == recorded["verify_input_ids"]


@functools.cache
def drafting(model):
    """A function (tokens of a text [T], position of an anchor) -> the greedy chain after the anchor
    [depth] and its confidences, step by step through the bundle.
    """
    params = load(model)
    spec, config = params.spec, params.spec.drafter("dspark")
    bundle, variables = make_drafter(config), params.drafters["dspark"]
    target = functools.partial(Transformer(spec.target).apply, params.target)
    head = TargetHead(*(functools.partial(target, method=name) for name in ("embed", "logits")))

    def draft(tokens, anchor):
        positions = jnp.arange(tokens.shape[1])[None]
        features = target(tokens, positions, feature_layers=config.feature_layers).features
        state = bundle.init(1, tokens.shape[1], jnp.float32)
        zero = jnp.zeros(1, jnp.int32)
        new = Committed(tokens, tokens, features, zero, zero + tokens.shape[1])
        state = bundle.absorb(variables, state, head, new)
        state = record_of(config).rewind(state, anchor[None])
        proposal, scratch = bundle.start(variables, state, head, tokens[:, anchor], config.depth)
        chain, judged = [], []
        for depth in range(1, config.depth + 1):
            token = proposal.logits[:, :, 0].argmax(-1)
            chain.append(token)
            judged.append(proposal.confidence[..., 0])
            if depth < config.depth:
                place = jnp.full((1, 1), depth - 1, jnp.int32)
                node = Nodes(token, place, place + 1, place, place == place)
                proposal, scratch = bundle.expand(
                    variables, state, scratch, head, node, jnp.int32(depth)
                )
        return jnp.concatenate(chain, 1)[0], jnp.concatenate(judged, 1)[0]

    return jax.jit(draft)


JUDGED = [trace for trace in TRACES if trace["rounds"] and trace["model"] != "draft_dflash"]


@pytest.mark.parametrize("trace", JUDGED, ids=lambda trace: trace["model"])
def test_drafts_and_confidences_of_every_round(trace):
    """Under a threshold, the first slot with less confidence ends the proposal."""
    longest = max(len(one["output_ids"]) for one in JUDGED)
    tokens = np.zeros((1, longest), np.int32)
    tokens[0, : len(trace["output_ids"])] = trace["output_ids"]
    limit = trace["confidence_threshold"]
    for recorded in trace["rounds"]:
        chain, judged = drafting(trace["model"])(tokens, recorded["start"])
        kept = recorded["draft_token_count"]
        assert chain[:kept].tolist() == recorded["verify_input_ids"][1:]
        np.testing.assert_allclose(
            judged[:kept], recorded["confidence_logits"] or [], atol=CONFIDENCE
        )
        below = np.flatnonzero(jax.nn.sigmoid(judged) < limit) if limit > 0 else []
        assert kept == (below[0] if len(below) else len(chain))
