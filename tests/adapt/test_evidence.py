"""Evidence of rounds equals what a plain forward pass and the traces of the rounds say."""

import functools

import adapt_toys as toys
import jax
import numpy as np
import pytest
from slow_cases import slow_except

from jaxspec.adapt.learning.cut import SegmentShape, cut_segments, find_rows
from jaxspec.adapt.learning.evidence import Buffers
from jaxspec.adapt.learning.learner import make_learner
from jaxspec.adapt.learning.segments import TOP
from jaxspec.call import prefill
from jaxspec.round import commit
from jaxspec.targets.transformer import Transformer


def texts_of(prompts, outs):
    return [np.array(prompt + out.tokens) for prompt, out in zip(prompts, outs, strict=True)]


@functools.partial(jax.jit, static_argnums=(0, 1))
def run_target(config, layers, target, text):
    model = Transformer(config)
    out = model.apply(target, text[None], np.arange(len(text))[None], feature_layers=layers)
    return [
        x[0] for x in (out.hidden, out.features, model.apply(target, out.hidden, method="logits"))
    ]


def forward(params, text):
    """Hidden states, features and logits of a text in one pass without a cache."""
    layers = params.spec.drafters[0][1].feature_layers
    padded = np.zeros(192, np.int32)
    padded[: len(text)] = text
    found = run_target(params.spec.target, layers, params.target, padded)
    return [np.asarray(x)[: len(text)] for x in found]


@pytest.mark.parametrize(("count", "temperature"), slow_except([(4, 0.0)], [(1, 1.0), (4, 0.0)]))
@pytest.mark.thorough
def test_rows_are_those_of_a_plain_pass(count, temperature):
    params, prompts = toys.make_params(), toys.PROMPTS[:count]
    outs, state, _ = toys.run_with_evidence(params, prompts, temperature=temperature)
    for b, text in enumerate(texts_of(prompts, outs)):
        hidden, features, logits = forward(params, text)
        if temperature == 0:  # evidence changes no token
            first = len(prompts[b])
            assert text[first:].tolist() == logits[first - 1 : -1].argmax(-1).tolist()
        rows = len(text) - 1  # the last token is not cached
        np.testing.assert_allclose(state.evidence.hidden[b, :rows], hidden[:rows], atol=2e-4)
        np.testing.assert_allclose(state.evidence.features[b, :rows], features[:rows], atol=2e-4)


LONG = toys.PROMPTS[2] + list(range(1, 31)) * 5  # 155 tokens, three chunks


@pytest.mark.parametrize(
    ("prompts", "tokens"),
    slow_except(
        [([toys.PROMPTS[2]], 150), ([LONG], 30)],
        [([toys.PROMPTS[2]], 150), ([LONG], 30), (toys.PROMPTS, 150)],
    ),
)
@pytest.mark.thorough
def test_a_ring_keeps_the_newest_rows(prompts, tokens):
    """Some round, or some chunk of the long prompt, crosses the end of the ring."""
    params, rows = toys.make_params(), 50
    outs, state, _ = toys.run_with_evidence(params, prompts, rows, max_new_tokens=tokens)
    turn, crossed = state.evidence.turn, False
    assert state.evidence.kept == rows
    for b, text in enumerate(texts_of(prompts, outs)):
        hidden, _, _ = forward(params, text)
        counts = np.asarray(state.round_emitted)[b, : int(state.rounds[b])]
        at = find_rows(len(prompts[b]), counts, turn)
        assert len(at) == len(text) - 1 > turn
        newest = np.arange(len(at) - rows, len(at))
        np.testing.assert_allclose(state.evidence.hidden[b, at[newest]], hidden[newest], atol=2e-4)
        crossed |= at.max() >= turn
    assert crossed


@pytest.mark.thorough
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

    monkeypatch.setattr(commit, "append_rows", refuse)
    monkeypatch.setattr(prefill, "append_rows", refuse)
    outs, state, session = toys.run_with_evidence(
        toys.make_params(), toys.PROMPTS[:1], rows=0, max_new_tokens=9
    )
    assert state.evidence is None and len(outs[0].tokens) == 9


BUILDERS = {"eagle3": dict(builder="dynamic/w10", budget=48)}


@pytest.mark.parametrize(
    ("method", "temperature"),
    slow_except(
        [("jetspec", 1.0)],
        [("jetspec", 0.0), ("jetspec", 1.0), ("medusa", 0.0), ("eagle3", 0.0)],
    ),
)
def test_positions_are_those_of_the_traces(method, temperature):
    """The drafter's chances of the tokens that the target chose, greedily or by chance, and the
    target's distributions, position by position."""
    params = toys.make_params(method)
    outs, state, _ = toys.run_with_evidence(
        params,
        toys.PROMPTS,
        trace=True,
        drafter=method,
        score_temperature=1.0,
        temperature=temperature,
        coupled=False,
        **BUILDERS.get(method, {}),
    )
    segments = list(cut_segments(params, state, toys.PROMPTS, toys.SHAPE, (0, 0)))
    assert len(segments) == len(outs)
    learner = make_learner(params.spec.drafter(method), params.spec.target, toys.ADAPT.learner)
    weights, ring = params.drafter(method)["params"], toys.fill_ring(segments)
    every = np.ones(ring.weight.shape, np.float32)
    hit, chance = learner.judge(weights, {}, params.target, ring, np.arange(4), every)
    for b, text in enumerate(texts_of(toys.PROMPTS, outs)):
        _, _, logits = forward(params, text)
        rows = len(text) - 1
        said = np.sort(np.asarray(jax.nn.log_softmax(logits)), axis=-1)[:rows, ::-1]
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
                assert chance[b, q, d] <= best + 1e-4
                assert temperature or not hit[b, q, d]
        assert checked > 3


def test_positions_are_split():
    params = toys.make_params()
    _, state, _ = toys.run_with_evidence(params, toys.PROMPTS)
    one, *_ = segments = list(cut_segments(params, state, toys.PROMPTS, toys.SHAPE, (0, 1)))
    again = next(cut_segments(params, state, toys.PROMPTS, toys.SHAPE, (0, 1)))
    np.testing.assert_array_equal(one.held, again.held)
    held = np.concatenate([each.held for each in segments])
    weight = np.concatenate([each.weight for each in segments])
    reject = np.concatenate([each.reject for each in segments])
    assert not (held * weight).any()
    assert not ((held.any(1)) & (weight.any(1))).any()  # rounds are held out as a whole
    assert (weight[held.any(1) == 0] >= reject[held.any(1) == 0] * 0.4).all()
    assert ((weight > 0) & (reject == 0)).any()


def test_a_ring_forgets_what_a_call_overwrites():
    """A call of more segments than the ring has room for: the newest remain, and are counted once."""
    params, _, ring = toys.gather("jetspec")
    segments = [jax.tree.map(lambda leaf, i=i: leaf[i], ring) for i in range(4)]
    buffers = Buffers(3)
    numbers = buffers.add([*segments, *segments])
    assert numbers == [5, 6, 7]
    buffers.keep("both", numbers)
    wanted = sum(int((segments[n % 4].weight > 0).sum()) for n in numbers)
    assert buffers.filled == {"head": wanted, "full": wanted} and buffers.count(numbers) == wanted
    assert sorted(buffers.take("head")) == sorted(buffers.newest(3)) == [0, 1, 2]
    assert buffers.filled == {"head": 0, "full": wanted}


def test_evidence_of_older_text_may_be_forgotten():
    params, _, ring = toys.gather("jetspec")
    buffers = Buffers(8)
    numbers = buffers.add([jax.tree.map(lambda leaf, i=i: leaf[i], ring) for i in range(4)])
    buffers.keep("both", numbers)
    buffers.forget(2)
    assert list(buffers.newest(8)) == [2, 3] and list(buffers.newest(1)) == [3]
    assert list(buffers.newest(8, 3)) == [3] and list(buffers.newest(8, 1)) == [2, 3]
    assert buffers.filled["head"] == buffers.count([2, 3]) > 0
    buffers.forget(1)  # what is forgotten does not come back
    assert list(buffers.take("full")) == [2, 3]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"accepted": 1.0}, "accepted is 1.0: give at least 0 and less than 1"),
        ({"held_out": -0.1}, "held_out is -0.1: give at least 0"),
        ({"rows": 32, "context": 32}, "context is 32: give fewer than the 32 rows"),
    ],
)
def test_mistakes_of_sizes_are_named(sizes, message):
    with pytest.raises(ValueError, match=message):
        SegmentShape(**sizes)
