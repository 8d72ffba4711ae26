"""Streams of prompts whose text changes, made from a file of prompts with domains."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxspec.call.arguments import check_count
from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.io.text.prompt_files import LabelledPrompt

STREAMS = ("blocks", "shuffled", "passes", "returning", "identifiers")
MIXED = ("shuffled", "passes")  # these may have one domain
PASSES = 4
_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]{3,}")


class Item(NamedTuple):
    """A prompt of a stream.

    Attributes:
      block: number of the stretch of equal text that it is in.
      domain: of the prompt.
      content: prompt for `jaxspec.decode`.
    """

    block: int
    domain: str
    content: Any


def make_stream(
    name: str, prompts: Sequence[LabelledPrompt], queries: int, seed: int, passes: int = PASSES
) -> list[Item]:
    """Make a stream; equal seeds make equal streams.

    Args:
      name: `blocks`: the domains one after the other, `queries` prompts each. `shuffled`: the same
        prompts in a random order. `passes`: these again and again, `passes` times in all, each a
        block (SpecBlock, table 5: 1 to 8). `returning`: the first domain, the second, the first again, with
        other prompts. `identifiers`: the first domain, then the few prompts of the second that
        share most identifiers with one of them, again and again.
      prompts: from `read_prompts`; a domain with too few is repeated.

    Raises:
      ValueError: unknown name, too few domains, or no pass.
    """
    if name not in STREAMS:
        raise ValueError(f"unknown stream {name!r}: {choose_one(name, STREAMS)}")
    check_count("passes", passes)
    random = np.random.default_rng([42, seed])
    domains = list(dict.fromkeys(prompt.domain for prompt in prompts))
    if len(domains) < 2 and name not in MIXED:
        raise ValueError(
            f"the prompts have a single domain: give a file with two or more, or {' or '.join(MIXED)}"
        )
    own = {
        domain: [prompt.content for prompt in prompts if prompt.domain == domain]
        for domain in domains
    }
    if name in ("blocks", *MIXED):
        blocks = [(domain, _draw(own[domain], queries, random)) for domain in domains]
    elif name == "returning":
        first = _draw(own[domains[0]], 2 * queries, random)
        second = _draw(own[domains[1]], queries, random)
        blocks = [
            (domains[0], first[:queries]), (domains[1], second), (domains[0], first[queries:])
        ]  # fmt: skip
    else:
        cluster = find_cluster(own[domains[1]], max(queries // 8, 1), random)
        blocks = [
            (domains[0], _draw(own[domains[0]], queries, random)),
            ("identifiers", _draw(cluster, queries, random)),
        ]
    items = [
        Item(number, domain, content)
        for number, (domain, contents) in enumerate(blocks)
        for content in contents
    ]
    if name not in MIXED:
        return items
    mixed = [items[i] for i in random.permutation(len(items))]
    turns = range(passes if name == "passes" else 1)
    return [item._replace(block=number) for number in turns for item in mixed]


def find_cluster(contents: Sequence[Any], size: int, random: np.random.Generator) -> list[Any]:
    """Find a prompt and its `size` - 1 nearest ones by shared identifiers (Jaccard similarity)."""
    names = [set(_NAME.findall(str(content))) for content in contents]
    centre = names[int(random.integers(len(names)))]
    near = sorted(
        range(len(names)),
        key=lambda i: (-len(centre & names[i]) / max(len(centre | names[i]), 1), i),
    )
    return [contents[i] for i in near[:size]]


def _draw(contents: Sequence[Any], count: int, random: np.random.Generator) -> list[Any]:
    """Draw prompts without repetition while there are other ones left."""
    drawn: list[Any] = []
    while len(drawn) < count:
        drawn += [contents[i] for i in random.permutation(len(contents))]
    return drawn[:count]
