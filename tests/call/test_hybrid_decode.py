"""Decodes of a target with recurrent layers: batches, streams, stops, traces, many rounds; and what
such targets cannot do yet.
"""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizer_toys
from hybrid_toys import HYBRID
from sharded_toys import OPTIONS, make_params

import jaxspec
from jaxspec.call.session import matmul_precision, prepare, run_prefill
from jaxspec.core.cache import allocate, append
from jaxspec.costs.roofline import DEVICES, roofline_costs
from jaxspec.drafters.draft_model import files
from jaxspec.drafters.draft_model.drafter import DraftModelConfig
from jaxspec.round.loop import run
from jaxspec.serve import make_engine
from jaxspec.targets.families.hf_config import target_config, target_config_to_hf
from jaxspec.targets.layouts.quant import COLLECTION, quantize_params
from jaxspec.targets.sharding.shares import widen
from jaxspec.targets.transformer import Transformer
from training.drafters import named
from training.drafters.first_weights import make_first_weights

TREES = dict(
    drafter="eagle3", budget=16, speculation=jaxspec.Speculation(builder="dynamic", policy=None)
)
NEW = 20


def list_prompts():
    """Shorter than the convolution, longer than a chunk of a prompt, and between."""
    random = np.random.default_rng(3)
    return [random.integers(2, 16, n).tolist() for n in (1, 70, 2, 9)]


@pytest.fixture(scope="module")
def params():
    return make_params(HYBRID, ("eagle3",))


def decode(params, prompts, **options):
    return jaxspec.decode(params, prompts, **dict(max_new_tokens=NEW) | options)


def tokens_of(outputs):
    return [output.tokens for output in outputs]


@pytest.mark.parametrize(
    "temperature", [0.0, pytest.param(1.0, marks=pytest.mark.thorough)], ids="T={}".format
)
def test_texts_do_not_depend_on_trees_or_neighbours(params, temperature):
    prompts, how = list_prompts(), dict(temperature=temperature, seed=5)
    plain = tokens_of(decode(params, prompts, drafter="ar", **how))
    drafted = decode(params, prompts, **TREES, **how)
    assert tokens_of(drafted) == plain
    assert sum(out.stats.rounds for out in drafted) < len(prompts) * (NEW - 1)
    assert max(max(out.per_round.tokens) for out in drafted) > 2
    if temperature:
        assert decode(params, prompts[0], **TREES, **how).tokens == plain[0]


@pytest.mark.thorough
def test_batches_that_shrink(params):
    prompts = list_prompts()
    plain = decode(params, prompts, drafter="ar")
    stop = (plain[0].tokens[4],)  # ends some sequences long before the others
    wanted = tokens_of(decode(params, prompts, drafter="ar", stop=stop))
    assert len({len(tokens) for tokens in wanted}) > 1
    assert tokens_of(decode(params, prompts, **TREES, stop=stop, shrink=True)) == wanted


@pytest.mark.thorough
def test_streams_and_stop_strings_that_cut_a_path(params, tmp_path):
    folder = tokenizer_toys.save(tmp_path / "tokenizer", tokenizer_toys.byte_level())
    params = params.replace(spec=dataclasses.replace(params.spec, tokenizer=str(folder)))
    prompt = list_prompts()[1]
    free = decode(params, prompt, **TREES)
    ends = np.cumsum(free.per_round.tokens)
    deep = int(np.argmax(free.per_round.tokens))  # a round that accepts several tokens
    middle = int(ends[deep]) - 1
    for stop in (free.tokens[middle], bytes(free.tokens[middle - 1 : middle + 1]).decode()):
        plain = decode(params, prompt, drafter="ar", stop=(stop,))
        cut = decode(params, prompt, **TREES, stop=(stop,))
        assert cut.tokens == plain.tokens and cut.text == plain.text
        assert len(cut.tokens) < NEW
        pieces = jaxspec.stream(params, prompt, max_new_tokens=NEW, stop=(stop,), **TREES)
        assert "".join(pieces) == plain.text


def run_alone(params, tokens):
    """States and logits [n, V] of a text from one pass without drafts."""
    module, config = Transformer(params.spec.target), params.spec.target
    out = module.apply(params.target, jnp.array([tokens]), jnp.arange(len(tokens))[None])
    logits = module.apply(params.target, out.hidden, method="logits")[0]
    cache = allocate(config, 1, len(tokens), jnp.float32)
    return append(cache, out.k, out.v, jnp.array([len(tokens)]), out.stash).recurrent, logits


@pytest.mark.thorough
def test_states_do_not_drift_in_a_hundred_rounds(params):
    prompt = list_prompts()[3]
    options = dict(max_new_tokens=300, sampling=jaxspec.Sampling(ignore_eos=True))
    session = prepare(params, prompt, **TREES, **options)
    with matmul_precision(session):
        state = run_prefill(session)
        state = run(session.params, session.request, state, np.int32(1000), config=session.config)
    assert state.rounds[0] >= 100
    text = [*prompt, *np.asarray(state.tokens)[0, :299].tolist()]  # the last is not cached
    assert state.cache.length[0] == len(text)
    states, _ = run_alone(params, text)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(
            one, other, rtol=0, atol=1e-4 * np.abs(other).max()
        ),
        state.cache.recurrent,
        states,
    )


@pytest.mark.thorough
def test_states_are_updated_in_place(params):
    session = prepare(params, list_prompts(), **TREES, max_new_tokens=4)
    with matmul_precision(session):
        state = run_prefill(session)
        given = session.params, session.request, state, np.int32(1)
        text = run.lower(*given, config=session.config).compile().as_text()
    (held,) = state.cache.recurrent
    shape = re.escape(f"f32[{','.join(map(str, held.s.shape))}]")
    made = re.findall(rf"^.* = {shape}\S* (\S+)\(.*$", text, re.MULTILINE)
    assert made.count("fusion") == 1 and "copy" not in made


@pytest.mark.thorough
def test_traces_hold_the_targets_own_probabilities(params):
    prompt = list_prompts()[3]
    output = decode(params, prompt, trace=True, **TREES)
    assert output.tokens == decode(params, prompt, drafter="ar").tokens
    text = [*prompt, output.tokens[0]]
    for round in output.rounds[:4]:
        tree = round.tree
        for row in range(1, len(tree.token)):
            path, above = [], tree.parent[row]
            while above > 0:
                path.insert(0, int(tree.token[above]))
                above = tree.parent[above]
            logits = run_alone(params, [*text, *path])[1][-1]
            wanted = jax.nn.log_softmax(logits)[tree.token[row]]
            np.testing.assert_allclose(tree.target_logprob[row], wanted, atol=1e-3)
        text += [int(tree.token[row]) for row in round.path[1:]] + [round.bonus]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_projections_in_one_byte(params, kind):
    prompts, small = list_prompts(), quantize_params(params, kind)
    scales = small.target[COLLECTION]["layers_0"]["delta_net"]
    assert set(scales) == {"qkvz", "out"}
    plain = decode(small, prompts, drafter="ar")
    assert tokens_of(decode(small, prompts, **TREES)) == tokens_of(plain)


@pytest.mark.thorough
def test_states_stay_in_float32_whatever_the_dtype(params):
    target = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params.target)
    spec = dataclasses.replace(params.spec, drafters=())
    found = []
    for one in (params.replace(target=target, drafters={}, spec=spec), params):
        session = prepare(one, list_prompts()[1], drafter="ar", max_new_tokens=4)
        found += run_prefill(session).cache.recurrent
    state, wanted = found
    assert state.conv.dtype == jnp.bfloat16 and state.s.dtype == jnp.float32
    assert np.abs(state.s - wanted.s).max() < 0.1 * np.abs(wanted.s).max()


def test_what_recurrent_layers_cannot_do_yet(params, tmp_path):
    start = r"^a model with recurrent layers \(gated delta nets\) cannot "
    with pytest.raises(ValueError, match=start + "be served yet: use jaxspec.decode"):
        make_engine(params)
    with pytest.raises(ValueError, match=start + "be shared by devices yet: load it without mesh"):
        widen(HYBRID, 2)
    with pytest.raises(ValueError, match=start + "be a draft model yet: give one whose layers"):
        files.for_target(DraftModelConfig(HYBRID), HYBRID)
    with pytest.raises(ValueError, match=start + "be trained for yet: train for one whose layers"):
        make_first_weights(named("medusa"), OPTIONS, None, 0, params)
    with pytest.raises(ValueError, match=start + "be counted by the roofline: measure it"):
        roofline_costs(HYBRID, DEVICES["h100"], (1, 2), (1,))
    entries = target_config_to_hf(HYBRID) | {"layer_types": ["linear_attention"] * 3}
    with pytest.raises(ValueError, match="layer_types needs a layer of type 'full_attention'"):
        target_config(entries)
