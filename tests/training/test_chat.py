import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import processors
from transformers import AutoTokenizer

from jaxspec.io.hub import ZOO
from training.data.chat import encode_messages, make_format
from training.data.documents import DataError
from training.data.encode import encode, span_mask
from training.data.pipeline import DataOptions
from training.data.samples import DataRecord, Sample
from training.preview import format_sample

TEMPLATES = Path(__file__).parent / "templates"
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "It is 4."},
    {"role": "user", "content": "And 3 + 3?"},
    {"role": "assistant", "content": "6, of course: żółć 😀"},
]


@pytest.fixture(scope="module")
def tokenizer():
    """That of `mini`, with Llama 3's special tokens beside ChatML's."""
    tokenizer = AutoTokenizer.from_pretrained(ZOO / "mini")
    names = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer.add_special_tokens(
        {
            "bos_token": names[0],
            "additional_special_tokens": names[1:] + ["<|im_start|>", "<|im_end|>"],
        }
    )
    return tokenizer


def learnt(sample, tokenizer):
    """The runs of tokens to be learnt, as text."""
    runs = itertools.groupby(
        zip(sample.loss_mask, sample.tokens, strict=True), key=lambda pair: pair[0]
    )
    return [
        tokenizer.decode([token for _, token in run], skip_special_tokens=False)
        for mask, run in runs
        if mask
    ]


def encode_one(record, tokenizer, template=None, **options):
    chat = make_format(tokenizer, template and TEMPLATES / template, **options)
    return encode([record], chat), chat


def test_llama3_learns_each_answer_and_its_end(tokenizer):
    (sample,), _ = encode_one(DataRecord("f, line 1", messages=CHAT), tokenizer, "llama3.jinja")
    assert learnt(sample, tokenizer) == ["It is 4.<|eot_id|>", "6, of course: żółć 😀<|eot_id|>"]
    text = tokenizer.decode(sample.tokens, skip_special_tokens=False)
    assert (
        text.startswith("<|begin_of_text|><|start_header_id|>system<|end_header_id|>")
        and text.count("<|begin_of_text|>") == 1
    )
    assert "Today Date: 26 Jul 2024" in text  # not the day of the run


def test_a_learnt_answer_follows_exactly_what_decoding_is_given(tokenizer):
    for template in ("llama3.jinja", "qwen3.jinja", "marked.jinja"):
        (*_, sample), chat = encode_one(
            DataRecord("f, line 1", messages=CHAT), tokenizer, template, enable_thinking=False
        )
        last = np.flatnonzero(np.diff(sample.loss_mask.astype(int)) == 1)[-1] + 1
        assert sample.tokens[:last].tolist() == encode_messages(CHAT[:4], chat)


def test_qwen3_gives_each_answer_the_context_in_which_it_is_generated(tokenizer):
    samples, _ = encode_one(
        DataRecord("f, line 1", messages=CHAT), tokenizer, "qwen3.jinja", enable_thinking=False
    )
    first, second = (
        tokenizer.decode(sample.tokens, skip_special_tokens=False) for sample in samples
    )
    think = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert first.endswith(f"{think}It is 4.<|im_end|>") and second.count("<think>") == 1
    assert [learnt(sample, tokenizer) for sample in samples] == [
        ["It is 4.<|im_end|>"],
        ["6, of course: żółć 😀<|im_end|>"],
    ]


def test_qwen3_learns_the_reasoning_of_thinking_answers(tokenizer):
    messages = [CHAT[1], {"role": "assistant", "content": "<think>\nAdd.\n</think>\n\n4."}]
    (sample,), _ = encode_one(DataRecord("f, line 1", messages=messages), tokenizer, "qwen3.jinja")
    assert learnt(sample, tokenizer) == ["<think>\nAdd.\n</think>\n\n4.<|im_end|>"]
    with pytest.warns(
        UserWarning,
        match=r"1 answers \(the first: f, line 1: message 2\) do not begin with .*enable_thinking",
    ):
        (sample,), _ = encode_one(
            DataRecord("f, line 1", messages=messages),
            tokenizer,
            "qwen3.jinja",
            enable_thinking=False,
        )
    assert "Add." in learnt(sample, tokenizer)[0]


def test_marked_templates_are_believed_and_agree_with_transformers(tokenizer):
    (sample,), chat = encode_one(DataRecord("f, line 1", messages=CHAT), tokenizer, "marked.jinja")
    assert learnt(sample, tokenizer) == ["It is 4.<|im_end|>", "6, of course: żółć 😀<|im_end|>"]
    # An end in ASCII: of a last character in several tokens, theirs marks the first only.
    (sample,), chat = encode_one(
        DataRecord("f, line 1", messages=CHAT[:3]), tokenizer, "marked.jinja"
    )
    theirs = tokenizer.apply_chat_template(
        CHAT[:3],
        chat_template=chat.template,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    np.testing.assert_array_equal(sample.tokens, theirs["input_ids"])
    ends = sample.tokens == tokenizer.convert_tokens_to_ids("<|im_end|>")
    np.testing.assert_array_equal(
        sample.loss_mask & ~ends, np.asarray(theirs["assistant_masks"], bool)
    )


def test_answers_that_call_tools_are_learnt(tokenizer, tmp_path):
    """In OpenAI's form, with a template that walks the arguments and one that writes them."""
    function = {"name": "f", "arguments": '{"n": 3}'}
    call = {"id": "call_1", "type": "function", "function": function}
    messages = [
        CHAT[1],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "4"},
        CHAT[2],
    ]
    head = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{{ m.content }}"
    tail = "{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    walk = "{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments|items %}"
    walks, writes = tmp_path / "walks", tmp_path / "writes"
    walks.write_text(
        f"{head}{walk}{{{{ k }}}}={{{{ v }}}}{{% endfor %}}{{% endfor %}}{tail}{{% endif %}}"
    )
    write = "{% for c in m.tool_calls or [] %}{{ 'call ' + c.function.arguments }}{% endfor %}"
    writes.write_text(f"{head}{write}{tail}{{% endif %}}")
    for template, said in ((walks, "n=3"), (writes, 'call {"n": 3}')):
        samples = encode(
            [DataRecord("f, line 1", messages=messages)], make_format(tokenizer, template)
        )
        (sample,) = samples
        assert learnt(sample, tokenizer) == [f"{said}<|im_end|>", "It is 4.<|im_end|>"]
    function["arguments"] = "{broken"
    with pytest.raises(DataError, match="line 7: message 2: .* of 'f' are no JSON object"):
        encode([DataRecord("f.jsonl, line 7", messages=messages)], make_format(tokenizer, walks))


def test_training_says_nothing_of_pytorch():
    """transformers advises to install it wherever it is imported first."""
    clean = {name: value for name, value in os.environ.items() if "ADVISORY" not in name}
    code = "from training.data.chat import make_format; make_format('mini')"
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True)
    assert done.returncode == 0 and "PyTorch" not in done.stderr + done.stdout, done.stderr


def test_text_and_plain_pairs_end_with_the_end_of_text(tokenizer):
    records = [
        DataRecord("f, line 1", text="Call me Ishmael."),
        DataRecord("f, line 2", prompt="2 + 2 =", response=" 4"),
        DataRecord("f, line 3", text="x<|endoftext|>"),
    ]
    text, pair, ended = encode(records, make_format(tokenizer, raw_prompts=True))
    assert text.loss_mask.all() and tokenizer.decode(text.tokens) == "Call me Ishmael.<|endoftext|>"
    assert (
        learnt(pair, tokenizer) == [" 4<|endoftext|>"]
        and tokenizer.decode(pair.tokens) == "2 + 2 = 4<|endoftext|>"
    )
    assert tokenizer.decode(ended.tokens) == "x<|endoftext|>"
    (chat,) = encode(records[1:2], make_format(tokenizer))
    assert tokenizer.decode(chat.tokens) == "Question: 2 + 2 =\nAnswer:  4<|endoftext|>"


def test_exact_tokens_are_used_as_they_are(tokenizer):
    (sample,) = encode(
        [DataRecord("f, line 1", tokens=[5, 6, 7], prompt_length=2)], make_format(None)
    )
    assert sample.tokens.tolist() == [5, 6, 7] and sample.loss_mask.tolist() == [False, False, True]
    with pytest.raises(DataError, match="f, line 1: token 9999 is outside the tokenizer's"):
        encode([DataRecord("f, line 1", tokens=[5, 9999], prompt_length=1)], make_format(tokenizer))


def test_order_is_kept_when_forms_mix(tokenizer):
    records = [
        DataRecord("1", text="one"),
        DataRecord("2", tokens=[5, 6], prompt_length=1),
        DataRecord("3", text="two"),
    ]
    assert [sample.place for sample in encode(records, make_format(tokenizer))] == ["1", "2", "3"]


def test_a_greeting_is_context_only(tokenizer):
    messages = [{"role": "assistant", "content": "Welcome!"}, *CHAT[1:3]]
    (sample,), _ = encode_one(DataRecord("f, line 1", messages=messages), tokenizer, "llama3.jinja")
    assert learnt(sample, tokenizer) == ["It is 4.<|eot_id|>"] and "Welcome!" in tokenizer.decode(
        sample.tokens
    )


def test_what_cannot_be_learnt_is_an_error_that_names_the_sample(tokenizer, tmp_path):
    silent, moody, refusing = (tmp_path / name for name in ("silent", "moody", "refusing"))
    silent.write_text(
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    moody.write_text("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}")
    refusing.write_text("{{ raise_exception('roles must alternate') }}")
    record = DataRecord("f.jsonl, line 7", messages=CHAT[1:3])
    with pytest.raises(DataError, match="f.jsonl, line 7: no token to train on"):
        encode([record], make_format(tokenizer, silent))
    with pytest.raises(
        DataError, match="f.jsonl, line 7: message 2: the chat template changes the text before"
    ):
        encode([record], make_format(tokenizer, moody))
    with pytest.raises(
        DataError,
        match=r"f.jsonl, line 7: message 2: .* cannot render these messages \(roles must alternate\)",
    ):
        encode([record], make_format(tokenizer, refusing))
    with pytest.raises(DataError, match="line 7: the conversation has no message of the assistant"):
        encode([DataRecord("f.jsonl, line 7", messages=CHAT[:2])], make_format(tokenizer))
    with pytest.raises(DataError, match="line 7: a prompt without a response"):
        encode([DataRecord("f.jsonl, line 7", prompt="x")], make_format(tokenizer))
    with pytest.raises(DataError, match="line 7: this model has no tokenizer"):
        encode([DataRecord("f.jsonl, line 7", text="x")], make_format(None))
    bare = AutoTokenizer.from_pretrained(ZOO / "mini")
    bare.chat_template = None
    with pytest.raises(
        DataError, match="line 7: .*no chat template: pass the file of one as chat_template"
    ):
        encode([record], make_format(bare))
    with pytest.raises(DataError, match="no chat template at .*nowhere"):
        make_format(tokenizer, tmp_path / "nowhere")


def test_tokens_across_a_boundary_are_not_learnt():
    # "ab c" + "d e": the second token straddles the boundary at 4; spaces are cut off "c", and "e"
    # shares a character's range.
    offsets = np.array([(0, 2), (3, 5), (6, 7), (6, 7), (8, 8)])
    assert span_mask(offsets, [(4, 7)]).tolist() == [False, False, True, True, False]
    assert span_mask(offsets, [(5, 8)]).tolist() == [False, False, True, True, True]
    assert not span_mask(offsets, [(8, 9)]).any()  # the last token is the space at 7
    assert span_mask(np.zeros((0, 2), int), [(0, 3)]).tolist() == []


def test_preview_marks_what_is_learnt(tokenizer):
    (sample,), _ = encode_one(
        DataRecord("f, line 1", messages=CHAT[1:3]), tokenizer, "marked.jinja"
    )
    options = DataOptions((), length=64)
    shown = format_sample(sample, tokenizer, options, ("[[", "]]"))
    assert shown.startswith(
        f"--- f, line 1: {len(sample.tokens)} tokens, {sample.loss_mask.sum()} to learn\n"
    )
    assert shown.endswith("<|im_start|>assistant\n[[It is 4.<|im_end|>]]\n")
    size = len(sample.tokens) - 3
    options = DataOptions((), length=size)
    assert f"--- cut off here at {size} tokens; 3 more are not used" in format_sample(
        sample, tokenizer, options, ("[[", "]]")
    )
    assert "--- left out" in format_sample(
        sample, tokenizer, DataOptions((), length=3), ("[[", "]]")
    )
    whole = Sample(np.arange(10, 20), np.ones(10, bool))
    assert "--- split into 3 documents of at most 4 tokens" in format_sample(
        whole, tokenizer, DataOptions((), length=4), ("[[", "]]")
    )


def test_the_mask_does_not_depend_on_how_spaces_are_counted():
    trimming = AutoTokenizer.from_pretrained(ZOO / "mini")
    trimming.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    chat = [CHAT[1], {"role": "assistant", "content": "  if x:\n        return  4  "}]
    samples = [
        encode([DataRecord("1", messages=chat)], make_format(t))[0] for t in ("mini", trimming)
    ]
    assert learnt(samples[0], trimming) == ["   if x:\n        return  4  <|endoftext|>"]
    for one, other in zip(*(sample[:2] for sample in samples), strict=True):
        np.testing.assert_array_equal(one, other)
