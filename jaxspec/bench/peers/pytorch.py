"""Run transformers' decoders in PyTorch, for comparison with ours."""

from __future__ import annotations

import functools
import importlib.util
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxspec.bench.peers.peer import Peer, PeerDecode, count_threads
from jaxspec.targets.gguf_files.layout import find_gguf_file, is_gguf
from jaxspec.zoo.pack import is_full, unpack_checkpoint

# Most tokens that transformers' prompt lookup drafts; the figure of its documentation.
LOOKUP_TOKENS = 10
PLAIN = "transformers generate"
HOW_TO_INSTALL = "PyTorch is not installed, so transformers is left out: pip install torch --index-url https://download.pytorch.org/whl/cpu"


def torch_installed() -> bool:
    """Whether PyTorch can be imported; it is not imported here."""
    return importlib.util.find_spec("torch") is not None


def torch_peers(
    directory: Path, assistants: dict[str, Any], eos: Sequence[int], max_new_tokens: int
) -> list[Peer]:
    """Make transformers' decoders of the model in `directory`: float32, on all allowed CPU threads.

    Args:
      directory: of the model, from `resolve_model`. transformers unpacks a GGUF file by itself.
      assistants: {name: directory} of draft models with the same tokenizer.
      eos: token ids that end a text.
      max_new_tokens: most tokens to generate.
    """
    import torch
    import transformers

    torch.set_num_threads(count_threads())
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    def read(path: str | os.PathLike) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            # transformers does not know our packed weights.
            full = Path(path if is_full(Path(path)) else unpack_checkpoint(path, folder))
            given, options = full, {}
            if is_gguf(full):
                given, options = (
                    find_gguf_file(full).parent,
                    {"gguf_file": find_gguf_file(full).name},
                )
            return transformers.AutoModelForCausalLM.from_pretrained(
                str(given), dtype=torch.float32, **options
            ).eval()

    model = read(directory)

    def decode(options, ids) -> PeerDecode:
        clock, given = _Clock(), torch.tensor([list(ids)])
        with torch.inference_mode():
            started = time.perf_counter()
            out = model.generate(
                given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                eos_token_id=list(eos) or None,
                pad_token_id=0,
                streamer=clock,
                **options,
            )
            ended = time.perf_counter()
        tokens = tuple(out[0, len(ids) :].tolist())
        return PeerDecode(tokens, ended - started, ended - clock.first, len(tokens) - clock.count)

    ways = {PLAIN: {}}
    ways |= {
        f"transformers assisted ({name})": {"assistant_model": read(path)}
        for name, path in assistants.items()
    }
    ways |= {"transformers prompt lookup": {"prompt_lookup_num_tokens": LOOKUP_TOKENS}}
    return [Peer(name, functools.partial(decode, options)) for name, options in ways.items()]


class _Clock:
    """A streamer for transformers that records when the first tokens arrive, and how many."""

    def __init__(self):
        self.calls, self.first, self.count = 0, 0.0, 0

    def put(self, tokens) -> None:
        self.calls += 1  # the first call hands over the prompt
        if self.calls == 2:
            self.first, self.count = time.perf_counter(), tokens.numel()

    def end(self) -> None:
        pass
