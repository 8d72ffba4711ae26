"""Race our decoding against others': same weights, prompts, threads and machine.

transformers in PyTorch decodes autoregressively (`generate`), with a draft model (assisted
generation) and by prompt lookup, in float32 like ours. llama.cpp decodes GGUF files, packed. All
decode greedily and take turns within a prompt, and their tokens are compared with ours.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import jaxspec
from jaxspec.bench.measure.methods import DEFAULT_METHOD, Method
from jaxspec.bench.peers.llama_cpp import (
    HOW_TO_INSTALL_LLAMA_CPP,
    llama_cpp_installed,
    llama_cpp_peer,
)
from jaxspec.bench.peers.overhead import measure_overhead
from jaxspec.bench.peers.peer import Peer, PeerDecode, count_threads
from jaxspec.bench.peers.pytorch import HOW_TO_INSTALL, PLAIN, torch_installed, torch_peers
from jaxspec.bench.report.summary import describe_environment
from jaxspec.call.options import group_options
from jaxspec.call.text.token_ids import to_ids
from jaxspec.core.params import WEIGHTLESS, Spec
from jaxspec.core.runtime.clock import order_turns, repeat_until_compiled
from jaxspec.drafters.registry import record_of
from jaxspec.io.text.prompt_files import LabelledPrompt
from jaxspec.io.text.tokenizer import load_tokenizer
from jaxspec.targets.gguf_files.layout import find_gguf_file, is_gguf


def compare_peers(
    params,
    prompts: Sequence[LabelledPrompt],
    methods: Sequence[Method],
    model: Path,
    assistants: dict[str, Any],
    *,
    max_new_tokens: int = 128,
    repeats: int = 5,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Run the whole comparison; return a report ready for JSON.

    Args:
      params: float32 weights, from `jaxspec.load`.
      methods: our methods; the first is `ar`.
      model: directory of the model, see `torch_peers`; a GGUF model is also given to llama.cpp.
        Peers that are not installed are left out.
      assistants: directories of draft models, see `torch_peers`.

    Returns:
      `device`, `versions`, `dtype`, `threads`, `max_new_tokens`, `repeats`, `results` (see
      `summarise_peer`), `overhead` of our methods (see `jaxspec.bench.peers.overhead`), and `note`,
      which says what was left out and why, or is None.
    """
    tokenizer = load_tokenizer(params.spec.tokenizer) if params.spec.tokenizer else None
    ids = [to_ids(prompt.content, tokenizer, params.spec.target) for prompt in prompts]
    context = max(map(len, ids)) + max_new_tokens
    others, versions, notes = find_others(
        model, assistants, params.spec.eos, context, max_new_tokens
    )
    peers = our_peers(params, methods, max_new_tokens) + others
    found = describe_environment(params)
    found["versions"] |= versions
    # The automatic policy decides round by round, so its rounds have no fixed parts.
    fixed = [method for method in methods if method.name != DEFAULT_METHOD]
    return {
        **found,
        "threads": count_threads(),
        "max_new_tokens": max_new_tokens,
        "repeats": repeats,
        "results": race_peers(params, prompts, peers, repeats=repeats, progress=progress),
        "overhead": measure_overhead(
            params, prompts, fixed, options={"max_new_tokens": max_new_tokens}
        ),
        "note": "\n".join(notes) or None,
    }


def find_others(
    model: Path,
    assistants: dict[str, Any],
    eos: Sequence[int],
    context: int,
    max_new_tokens: int,
) -> tuple[list[Peer], dict[str, str], list[str]]:
    """Return the peers that are installed, their versions, and how to install the others."""
    peers, packages, notes = [], [], []
    if torch_installed():
        peers += torch_peers(model, assistants, eos, max_new_tokens)
        packages += ["torch", "transformers"]
    else:
        notes.append(HOW_TO_INSTALL)
    if is_gguf(model) and llama_cpp_installed():
        peers.append(llama_cpp_peer(find_gguf_file(model), context, eos, max_new_tokens))
        packages.append("llama-cpp-python")
    elif is_gguf(model):
        notes.append(HOW_TO_INSTALL_LLAMA_CPP)
    return peers, {name: importlib.metadata.version(name) for name in packages}, notes


def default_methods(spec: Spec) -> str:
    """Choose the methods to compare for a model: the preferred drafter of each kind, with the
    `peer_method` of its record. The sizes are the fastest on two CPU cores.
    """
    methods: dict[type, str] = {}
    for name in dict.fromkeys([*dict(spec.drafters), *WEIGHTLESS]):
        record = record_of(spec.drafter(name))
        if record.peer_method is not None:
            methods.setdefault(record.config, f"{name}-{record.peer_method}")
    return ",".join(methods.values())


def our_peers(params, methods: Sequence[Method], max_new_tokens: int) -> list[Peer]:
    """Make peers of our methods. They always decode greedily; a decode that compiled something is
    run again.
    """

    def decode(options, ids) -> PeerDecode:
        call = functools.partial(
            jaxspec.decode, params, ids, max_new_tokens=max_new_tokens, **group_options(**options)
        )
        out, _ = repeat_until_compiled(call)
        stats = out.stats
        whole = stats.prefill_seconds + stats.decode_seconds
        return PeerDecode(tuple(out.tokens), whole, stats.decode_seconds, len(out.tokens) - 1)

    return [Peer(method.name, functools.partial(decode, method.options)) for method in methods]


def find_assistants(spec: Spec, directories: dict[str, Any]) -> dict[str, Any]:
    """Return {name: directory} of the drafters that are complete language models."""
    return {
        name: directories[name] for name, config in spec.drafters if record_of(config).assistant
    }


def race_peers(
    params,
    prompts: Sequence[LabelledPrompt],
    peers: Sequence[Peer],
    *,
    repeats: int = 5,
    progress: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Let peers decode every prompt `repeats` times in turns, see `order_turns`. The first peer is
    our `ar`.

    Returns:
      The result of `summarise_peer` for each peer, in order.
    """
    tokenizer = load_tokenizer(params.spec.tokenizer) if params.spec.tokenizer else None
    found: dict[str, dict[int, list[PeerDecode]]] = {peer.name: defaultdict(list) for peer in peers}
    for index, prompt in enumerate(prompts):
        progress(f"prompt {index + 1} of {len(prompts)} ({prompt.domain})")
        ids = to_ids(prompt.content, tokenizer, params.spec.target)
        for peer in peers:
            peer.decode(ids)  # compiles, allocates and warms up
        for repeat in range(repeats):
            for peer in order_turns(peers, index, repeat):
                found[peer.name][index].append(peer.decode(ids))
    progress("")
    return [summarise_peer(peer.name, found) for peer in peers]


def summarise_peer(name: str, found: dict[str, dict[int, list[PeerDecode]]]) -> dict[str, Any]:
    """Compute the figures of one peer.

    - `tokens_per_second` (after the first token) and `tokens_per_second_with_prefill`: tokens over
      seconds, summed over the prompts, each with its median repeat;
    - `spread`: median over the prompts of (slowest - fastest) / median repeat;
    - `against_plain` and `against_plain_iqr`: median and quartiles of the ratios of its speed with
      prefill to that of transformers' `generate` in the same repeat of the same prompt (None
      without PyTorch);
    - `speedup`: the same median for the ratios to our `ar`.
    """
    own, ours = found[name], next(iter(found.values()))
    decodes = [d for some in own.values() for d in some]
    median = {index: np.median([d.seconds for d in some]) for index, some in own.items()}
    after = [
        (some[0].decode_tokens, np.median([d.decode_seconds for d in some]))
        for some in own.values()
    ]
    differing = [
        index for index, some in own.items() if any(d.tokens != ours[index][0].tokens for d in some)
    ]
    ratios = {other: _ratios(own, found.get(other)) for other in (PLAIN, next(iter(found)))}
    plain, speedups = ratios.values()
    return {
        "name": name,
        "tokens_per_second": _over(
            sum(tokens for tokens, _ in after), sum(seconds for _, seconds in after)
        ),
        "tokens_per_second_with_prefill": _over(
            sum(len(some[0].tokens) for some in own.values()), sum(median.values())
        ),
        "spread": float(
            np.median(
                [np.ptp([d.seconds for d in some]) / median[index] for index, some in own.items()]
            )
        ),
        "against_plain": None if plain is None else float(np.median(plain)),
        "against_plain_iqr": None
        if plain is None
        else [float(q) for q in np.percentile(plain, [25, 75])],
        "speedup": float(np.median(speedups)),
        "identical_to_ar": not differing,
        "differing_prompts": len(differing),
        "decodes": len(decodes),
    }


def _ratios(own, others) -> list[float] | None:
    """Divide a peer's speed by another's, tokens per second with prefill, repeat by repeat."""
    if others is None:
        return None
    pairs = [pair for index, some in own.items() for pair in zip(some, others[index], strict=True)]
    return [(len(a.tokens) / a.seconds) / (len(b.tokens) / b.seconds) for a, b in pairs]


def _over(tokens: int, seconds: float) -> float | None:
    return float(tokens / seconds) if seconds else None
