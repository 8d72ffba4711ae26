"""Train the byte-level BPE tokenizer of a small target and write it in Hugging Face form.

python -m jaxspec.training.tokenizer --data corpus.jsonl.gz --out jaxspec/zoo/mini
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from jaxspec.io.files.atomic import staging

from .data.documents import read_documents
from .run.command import one_line_errors

EOS, IM_START, IM_END, MASK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"
SPECIAL = (EOS, IM_START, IM_END, MASK)
CONFIG = "tokenizer_config.json"
# A user turn is a question and the assistant's turn its answer, as in the GSM8K records that the
# target is trained on.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ 'Answer: ' + message['content'] + '<|endoftext|>' }}"
    "{% elif message['role'] == 'system' %}{{ message['content'] + '\\n' }}"
    "{% else %}{{ 'Question: ' + message['content'] + '\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Answer:' }}{% endif %}"
)


@dataclasses.dataclass
class TokenizerOptions:
    """Options of the tokenizer recipe.

    Attributes:
      data: JSON Lines of {"domain", "text"}, optionally gzipped.
      out: folder for tokenizer.json and tokenizer_config.json.
      vocab_size: number of ids, special tokens included.
      characters_per_domain: characters to read from each domain, so that none dominates the merges.
      max_positions: `model_max_length` of the tokenizer.
    """

    data: Path
    out: Path
    vocab_size: int = 4096
    characters_per_domain: int = 3_500_000
    max_positions: int = 2048


def train_tokenizer(texts, vocab_size: int):
    """Train a `tokenizers.Tokenizer`: byte-level BPE with single digits and no prefix space.

    Special tokens have the ids 0 to 3.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"the text gives only {tokenizer.get_vocab_size()} of {vocab_size} tokens: "
            "use more text or a smaller vocab_size"
        )
    return tokenizer


def save_tokenizer(tokenizer, out: Path, max_positions: int) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` for `transformers.AutoTokenizer`."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "pad_token": EOS,
        "mask_token": MASK,
        "additional_special_tokens": [IM_START, IM_END],
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_positions,
    }
    with staging(out, last=CONFIG) as folder:
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def balance_domains(documents: dict[str, list[str]], characters: int):
    """Yield at most `characters` of each domain: the beginning of every document in turn."""
    for texts in documents.values():
        share = max(characters // len(texts), 1)
        left = characters
        for text in texts:
            piece = text[: min(len(text), max(share, 2000), left)]
            left -= len(piece)
            if piece:
                yield piece


def main(options: TokenizerOptions) -> None:
    """Train on `options.data` and write to `options.out`."""
    texts = balance_domains(read_documents(options.data), options.characters_per_domain)
    save_tokenizer(train_tokenizer(texts, options.vocab_size), options.out, options.max_positions)


if __name__ == "__main__":
    import tyro

    with one_line_errors():
        main(tyro.cli(TokenizerOptions))
