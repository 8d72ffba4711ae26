"""Evidence of rounds equals what a plain forward pass and the traces of the rounds say."""

import adapt_toys as toys
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.adapt.cut import Shape, cut_segments
from jaxspec.adapt.learner import Learner, LearnerOptions
from jaxspec.adapt.segments import TOP, empty_ring, write_segment
from jaxspec.engine import commit, prefill
from jaxspec.targets.transformer import Transformer

SHAPE = Shape(rows=64, context=16, rounds=40, depths=4)


def texts_of(prompts, outs):
    return [np.array(prompt + out.tokens) for prompt, out in zip(prompts, outs, strict=True)]


def forward(params, text):
    """Hidden states, features and logits of a text in one pass without a cache."""
    model = Transformer(params.spec.target)
    layers = params.spec.drafters[0][1].feature_layers
    out = model.apply(params.target, text[None], np.arange(len(text))[None], feature_layers=layers)
    logits = model.apply(params.target, out.hidden, method="logits")
    return (np.asarray(x[0]) for x in (out.hidden, out.features, logits))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("prompts", [toys.PROMPTS[:1], toys.PROMPTS])
def test_rows_are_those_of_a_plain_pass(prompts, temperature):
    params = toys.make_params()
    plain = jaxspec.decode(params, prompts, temperature=temperature, **toys.OPTIONS)
    outs, state, _ = toys.run_with_evidence(params, prompts, temperature=temperature)
    assert [out.tokens for out in outs] == [out.tokens for out in plain]
    for b, text in enumerate(texts_of(prompts, outs)):
        hidden, features, _ = forward(params, text)
        rows = len(text) - 1  # the last token is not cached
        np.testing.assert_allclose(state.evidence.hidden[b, :rows], hidden[:rows], atol=2e-4)
        np.testing.assert_allclose(state.evidence.features[b, :rows], features[:rows], atol=2e-4)


def test_a_ring_keeps_the_newest_rows():
    params, rows = toys.make_params(), 64
    outs, state, _ = toys.run_with_evidence(params, toys.PROMPTS[:1], rows, max_new_tokens=150)
    (text,) = texts_of(toys.PROMPTS[:1], outs)
    hidden, _, _ = forward(params, text)
    newest = np.arange(len(text) - 1 - rows, len(text) - 1)
    np.testing.assert_allclose(state.evidence.hidden[0, newest % rows], hidden[newest], atol=2e-4)


def test_rejections_are_those_of_the_traces():
    params = toys.make_params()
    outs, state, _ = toys.run_with_evidence(params, toys.PROMPTS, trace=True)
    found = np.asarray(state.evidence.rejected)
    for b, out in enumerate(outs):
        # The last round is cut by the limit.
        wanted = [bool((one.tree.parent[1:] == one.path[-1]).any()) for one in out.rounds[:-1]]
        assert found[b, : len(wanted)].tolist() == wanted
        assert 0 < sum(wanted) < len(wanted)


def test_nothing_is_traced_without_evidence(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("evidence is off")

    for module in (commit, prefill):
        monkeypatch.setattr(module, "write_rows", refuse)
    outs, state, session = toys.run_with_evidence(
        toys.make_params(), toys.PROMPTS[:1], rows=0, max_new_tokens=9
    )
    assert state.evidence is None and len(outs[0].tokens) == 9


BUILDERS = {"eagle3": "dynamic/w10"}


@pytest.mark.parametrize("method", ["jetspec", "medusa", "eagle3"])
def test_positions_are_those_of_the_traces(method):
    """The drafter's chances and the target's distributions, position by position."""
    params = toys.make_params(method)
    given = {"builder": BUILDERS[method], "budget": 48} if method in BUILDERS else {}
    outs, state, session = toys.run_with_evidence(
        params, toys.PROMPTS, trace=True, method=method, score_temperature=1.0, **given
    )
    segments = list(cut_segments(params, state, toys.PROMPTS, SHAPE, (0, 0)))
    assert len(segments) == len(outs)
    ring = empty_ring(segments[0], 6)
    for at, one in enumerate(segments):
        ring = write_segment(ring, one, np.int32(at))
    variables = params.drafter(method)
    learner = Learner(
        params.spec.drafter(method), params.spec.target, LearnerOptions(context=SHAPE.context)
    )
    hit, chance = learner.judge(variables["params"], {}, params.target, ring, np.arange(4))
    for b, text in enumerate(texts_of(toys.PROMPTS, outs)):
        _, _, logits = forward(params, text)
        rows = len(text) - 1
        said = np.sort(np.asarray(jax.nn.log_softmax(jnp.asarray(logits))), axis=-1)[:rows, ::-1]
        kept = min(TOP, said.shape[1])
        np.testing.assert_allclose(segments[b].logprob[:rows], said[:, :kept], atol=1e-3)
        checked = 0
        for q, one in enumerate(outs[b].rounds):
            tree, path = one.tree, one.path
            for d, (parent, child) in enumerate(zip(path, path[1:], strict=False)):
                known = tree.logprob[child] - tree.logprob[parent]
                np.testing.assert_allclose(np.log(chance[b, q, d]), known, atol=2e-3)
                checked += 1
            d = len(path) - 1
            if segments[b].reject[q].any():
                assert segments[b].reject[q, d] == 1
                # A rejected place: the target's token is none of the children.
                children = tree.token[1:][tree.parent[1:] == path[-1]]
                assert one.bonus not in children
                best = np.exp(tree.logprob - tree.logprob[path[-1]])[1:][
                    tree.parent[1:] == path[-1]
                ].max()
                assert chance[b, q, d] <= best + 1e-4 and not hit[b, q, d]
        assert checked > 3


def test_positions_are_split():
    params = toys.make_params()
    _, state, _ = toys.run_with_evidence(params, toys.PROMPTS)
    one, *_ = segments = list(cut_segments(params, state, toys.PROMPTS, SHAPE, (0, 1)))
    again = next(cut_segments(params, state, toys.PROMPTS, SHAPE, (0, 1)))
    np.testing.assert_array_equal(one.held, again.held)
    held = np.concatenate([each.held for each in segments])
    weight = np.concatenate([each.weight for each in segments])
    reject = np.concatenate([each.reject for each in segments])
    assert not (held * weight).any()
    assert not ((held.any(1)) & (weight.any(1))).any()  # rounds are held out as a whole
    assert (weight[held.any(1) == 0] >= reject[held.any(1) == 0] * 0.4).all()
    assert ((weight > 0) & (reject == 0)).any()
