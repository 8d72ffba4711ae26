"""Vocabularies of different sizes: more tokens than embedding rows, and padded tables."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import SHIPPED
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer as Fast
from tokenizers import decoders, models, pre_tokenizers

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.cli.main import main
from jaxspec.core.config import TargetConfig
from jaxspec.core.params import Params, Spec
from jaxspec.drafters.base import Committed, TargetHead
from jaxspec.drafters.registry import make_drafter
from jaxspec.io.files.safetensors_files import WEIGHTS
from jaxspec.io.text.tokenizer import load_tokenizer
from jaxspec.serve.checks import DraftLimits, Limits, check_request
from jaxspec.serve.requests import InvalidRequest, ServeRequest
from jaxspec.targets.transformer import Transformer
from jaxspec.zoo.compare_files import compare_records

TOKENS = 322
TARGET = TargetConfig(
    hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, ffn_size=24,
    vocab_size=TOKENS, max_positions=256,
)  # fmt: skip
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def write_tokenizer(folder, words: int = TOKENS - 258, added=("<s>", "</s>"), pad=True) -> None:
    """Byte-level tokens, some words that no text is split into, and special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {
        symbol: i for i, symbol in enumerate([*alphabet, *(f"w{i}" for i in range(words))])
    }
    fast = Fast(models.BPE(vocab=vocabulary, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([*added, *(["[PAD]"] if pad else [])])
    fast.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def model(config: TargetConfig, seed: int):
    token = jnp.zeros((1, 2), jnp.int32)
    variables = jax.jit(Transformer(config).init)(jax.random.key(seed), token, token)
    # Steeper logits vary the text.
    return jax.tree.map(lambda leaf: leaf * 12 if leaf.ndim > 1 else leaf, variables)


def write_model(folder, rows: int, seed: int = 0, like=None, **tokenizer):
    """A random model with a table of `rows` rows, and a tokenizer."""
    config = dataclasses.replace(TARGET, vocab_size=rows)
    variables = model(config, seed)
    if like is not None:  # a copy with a table of another size
        tensors = load_file(like / WEIGHTS)
        jaxspec.save(Params(variables, {}, Spec(config)), folder)
        common = min(rows, len(tensors["lm_head.weight"]))
        for name, tensor in load_file(folder / WEIGHTS).items():
            if name in ("lm_head.weight", "model.embed_tokens.weight"):
                tensors[name] = np.r_[tensors[name][:common], tensor[common:]]
        save_file(tensors, folder / WEIGHTS)
    else:
        jaxspec.save(Params(variables, {}, Spec(config)), folder)
    if tokenizer.pop("tokenizer", True):
        write_tokenizer(folder, **tokenizer)
    return folder


@pytest.fixture(scope="module")
def more_tokens(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("more") / "target", TOKENS)


def test_a_token_without_a_row_is_refused_in_prompts(more_tokens, capsys):
    params = jaxspec.load(more_tokens, dtype="float32")
    tokenizer = load_tokenizer(str(more_tokens))
    assert len(tokenizer) == TOKENS + 1 and params.spec.target.vocab_size == TOKENS
    says = r"token id 322, '\[PAD\]', is outside the vocabulary of 322: .* leave it out"
    chat = [{"role": "user", "content": "a[PAD]"}]
    for prompt in ("a[PAD]b", [5, TOKENS], chat, ["a", "[PAD]"]):
        with pytest.raises(ValueError, match=says) as caught:
            jaxspec.decode(params, prompt, max_new_tokens=2)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=says):
        next(jaxspec.stream(params, "a[PAD]b", max_new_tokens=2))
    with pytest.raises(ValueError, match="token id 323 is outside the vocabulary of 322: use the"):
        jaxspec.decode(params, [TOKENS + 1], max_new_tokens=2)
    assert main(["generate", str(more_tokens), "--raw", "--prompt", "[PAD]"]) != 0
    assert "leave it out of the prompt" in capsys.readouterr().err
    limits = Limits(params.spec, (DraftLimits("ar", 0, 1),), 100, tokenizer)
    with pytest.raises(InvalidRequest, match=says):  # which is answered with 400
        check_request(ServeRequest((5, TOKENS)), limits)


def test_texts_that_hold_none_are_decoded(more_tokens):
    params = jaxspec.load(more_tokens, drafter="prompt_lookup", dtype="float32")
    out = jaxspec.decode(params, "abc", drafter="ar", max_new_tokens=4)
    assert len(out.tokens) == 4 and max(out.tokens) < TOKENS


def test_an_end_without_a_row_is_left_out(more_tokens, tmp_path):
    shutil.copytree(more_tokens, tmp_path / "x")
    ends = {"eos_token_id": [257, TOKENS]}
    (tmp_path / "x" / "generation_config.json").write_text(json.dumps(ends))
    assert jaxspec.load(tmp_path / "x").spec.eos == (257,)


def test_the_doctor_notes_it(more_tokens):
    warnings, notes = compare_records(more_tokens, more_tokens, {})
    assert not warnings and any("prompts that hold a token without a row" in one for one in notes)


@pytest.mark.parametrize(
    ("tokenizer", "loads"),
    [
        ({"added": [f"<{i}>" for i in range(90)]}, True),  # as fine-tuning adds
        ({"words": TOKENS - 258 + 4, "pad": False}, True),
        ({"words": 500}, False),  # another model's
    ],
)
def test_how_many_tokens_may_lack_a_row(tmp_path, tokenizer, loads):
    folder = write_model(tmp_path / "x", TOKENS, **tokenizer)
    message = "tokens and the model 322 .*belong to different models"
    with contextlib.nullcontext() if loads else pytest.raises(ValueError, match=message):
        jaxspec.load(folder)


PROMPTS = [[1, 2, 3], list(range(250, 270))]


THOROUGH = pytest.mark.thorough
SIZES = [(336, 328)] + [pytest.param(two, marks=THOROUGH) for two in ((328, 336), (336, 322))]
RULES = ["rejection"] + [pytest.param(one, marks=THOROUGH) for one in ("match", "sequential")]


@pytest.fixture(scope="module", params=SIZES, ids=str)
def padded(request, tmp_path_factory):
    """A target and its copy as a draft model, with tables of other sizes."""
    rows, drafted = request.param
    folder = tmp_path_factory.mktemp("padded")
    target = write_model(folder / "target", rows, pad=False)
    draft = write_model(folder / "draft", drafted, 1, like=target, tokenizer=drafted == 328)
    return jaxspec.load(target, drafter=draft, dtype="float32"), min(rows, drafted)


def test_tokens_without_a_row_are_never_proposed(padded):
    params, common = padded
    config, rows = params.spec.drafter("draft_model"), params.spec.target.vocab_size
    drafter, none = make_drafter(config), TargetHead(None, None)
    state = drafter.init(1, 8, jnp.float32)
    beyond = jnp.full((1, 2), rows - 1)  # a token that the draft model may not have
    new = Committed(beyond, beyond, None, jnp.array([0]), jnp.array([2]))
    state = drafter.absorb(params.drafters["draft_model"], state, none, new)
    proposal, _ = drafter.start(params.drafters["draft_model"], state, none, beyond[:, 0], 4)
    logits = np.asarray(proposal.logits)[0, 0, 0]
    assert logits.shape == (rows,) and np.isfinite(logits[:common]).all()
    assert np.isneginf(logits[common:]).all()


def test_a_draft_model_of_another_padding_drafts(padded):
    """A copy of the target is always right, unless the target takes a row that the copy lacks."""
    params, common = padded
    config = params.spec.drafter("draft_model")
    assert config.vocab_size == params.spec.target.vocab_size
    assert (config.draft_vocab_size or config.vocab_size) == common
    plain = jaxspec.decode(params, PROMPTS, drafter="ar", max_new_tokens=16)
    options = {"drafter": "draft_model", "builder": "dynamic/w3", "budget": 6, "max_new_tokens": 16}
    outs = jaxspec.decode(params, PROMPTS, **group_options(**options))
    assert [out.tokens for out in outs] == [out.tokens for out in plain]
    assert sum(out.stats.emitted for out in outs) > 2 * sum(out.stats.rounds for out in outs)


@pytest.mark.thorough
@pytest.mark.parametrize("acceptance", RULES)
def test_sampling_keeps_the_targets_distribution(padded, acceptance):
    """The target's tokens beyond the draft model's come as often as without it."""
    params, common = padded
    options = {"temperature": 1.0, "max_new_tokens": 8}
    plain = jaxspec.decode(params, [[1, 2, 3]] * 96, drafter="ar", **group_options(**options))
    options |= {"builder": "chain", "budget": 4, "acceptance": acceptance}
    outs = jaxspec.decode(
        params, [[1, 2, 3]] * 96, drafter="draft_model", **group_options(**options)
    )
    first, second = (np.concatenate([out.tokens for out in found]) for found in (plain, outs))
    if acceptance == "match":
        np.testing.assert_array_equal(first, second)
    for least, most in ((0, 100), (100, common), (common, params.spec.target.vocab_size)):
        shares = [np.mean((tokens >= least) & (tokens < most)) for tokens in (first, second)]
        spread = np.sqrt(2 * shares[0] * (1 - shares[0]) / len(first))
        assert abs(shares[0] - shares[1]) <= 5 * spread + 1e-9
    assert sum(out.stats.emitted - out.stats.rounds for out in outs) > 0


def test_another_tokenizer_is_refused(tmp_path):
    target = write_model(tmp_path / "target", 336, pad=False)
    draft = write_model(tmp_path / "draft", 328, words=0, added=["<a>", "</a>"], pad=False)
    jaxspec.load(target, drafter=draft)  # fewer words, the same for all ids that both have
    tokenizer = json.loads((draft / "tokenizer.json").read_text())
    symbols = tokenizer["model"]["vocab"]
    symbols["!"], symbols["a"] = symbols["a"], symbols["!"]
    (draft / "tokenizer.json").write_text(json.dumps(tokenizer))
    load_tokenizer.cache_clear()
    with pytest.raises(
        ValueError, match="its tokenizer is another one, token 0 is 'a' and not '!'"
    ):
        jaxspec.load(target, drafter=draft)


@pytest.mark.parametrize("rows", [200, TOKENS + 2000])
def test_without_a_tokenizer_of_its_own_the_sizes_must_be_near(tmp_path, rows):
    target = write_model(tmp_path / "target", 336, pad=False)
    draft = write_model(tmp_path / "draft", rows, tokenizer=False)
    message = (
        f"its vocabulary has {rows} tokens, the target's 336; use a smaller model with the target"
    )
    with pytest.raises(ValueError, match=message):
        jaxspec.load(target, drafter=draft)


EAGLE = SHIPPED / "eagle3" / "draft"


@pytest.mark.parametrize("rows", [250, 264])
def test_drafters_of_features_are_padded_too(tmp_path, rows):
    """EAGLE-3 for 257 tokens, whose target has another number of rows; both know 240 tokens."""
    target, folder = tmp_path / "target", tmp_path / "draft"
    shutil.copytree(SHIPPED / "tiny_llama", target)
    config = json.loads((target / "config.json").read_text()) | {"vocab_size": rows}
    (target / "config.json").write_text(json.dumps(config))
    tensors = load_file(target / WEIGHTS)
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        tensors[name] = np.resize(tensors[name], (rows, 64))
    save_file(tensors, target / WEIGHTS)
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())[:240]
    Fast(models.BPE(vocab={one: i for i, one in enumerate(symbols)}, merges=[])).save(
        str(target / "tokenizer.json")
    )
    shutil.copytree(EAGLE, folder)
    tensors = load_file(folder / WEIGHTS)
    whole = {name: x for name, x in tensors.items() if name not in ("d2t", "t2d")}
    random = np.random.default_rng(0)
    whole["lm_head.weight"] = random.normal(size=(257, 64)).astype(np.float32)
    save_file(whole, folder / WEIGHTS)
    hf = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(hf | {"draft_vocab_size": None}))
    params = jaxspec.load(target, drafter=folder, dtype="float32")
    config, variables = params.spec.drafter("eagle3"), params.drafters["eagle3"]
    assert (config.vocab_size, config.draft_vocab_size) == (rows, None if rows < 257 else 257)
    kept = min(rows, 257)
    np.testing.assert_array_equal(variables["params"]["lm_head"], whole["lm_head.weight"][:kept].T)
    assert rows < 257 or variables["draft"]["ids"].tolist() == list(range(257))
    jaxspec.save(params, tmp_path / "saved")
    assert jaxspec.load(tmp_path / "saved").spec.drafter("eagle3") == config
