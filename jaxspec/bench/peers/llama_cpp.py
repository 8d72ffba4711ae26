"""Run llama.cpp on a GGUF file, for comparison with ours.

It computes with the packed weights, so it reads a fraction of the bytes that float32 takes, and
rounds activations to 8 bits. Its texts may therefore differ from those of the unpacked weights.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path

from jaxspec.bench.peers.peer import Peer, PeerDecode, count_threads

LLAMA_CPP = "llama.cpp"
HOW_TO_INSTALL_LLAMA_CPP = (
    "llama-cpp-python is not installed, so llama.cpp is left out: pip install llama-cpp-python "
    "(it is compiled, which takes some minutes)"
)


def llama_cpp_installed() -> bool:
    """Whether llama-cpp-python can be imported; it is not imported here."""
    return importlib.util.find_spec("llama_cpp") is not None


def llama_cpp_peer(path: Path, context: int, eos: Sequence[int], max_new_tokens: int) -> Peer:
    """Make a peer of llama.cpp's greedy decoding, on all allowed CPU threads.

    Args:
      path: a GGUF file.
      context: tokens that the longest prompt and its text take together.
      eos: token ids that end a text.
      max_new_tokens: most tokens to generate.
    """
    from llama_cpp import Llama

    threads, ends = count_threads(), frozenset(eos)
    model = Llama(
        str(path), n_ctx=context, n_threads=threads, n_threads_batch=threads, verbose=False
    )

    def decode(ids: list[int]) -> PeerDecode:
        model.reset()  # otherwise it goes on from a prefix that it has seen
        tokens, first = [], 0.0
        started = time.perf_counter()
        for token in model.generate(ids, temp=0.0, repeat_penalty=1.0):
            first = first or time.perf_counter()
            tokens.append(int(token))
            if token in ends or len(tokens) == max_new_tokens:
                break
        ended = time.perf_counter()
        return PeerDecode(tuple(tokens), ended - started, ended - first, len(tokens) - 1)

    return Peer(f"{LLAMA_CPP} ({path.stem.rpartition('.')[2]})", decode)
