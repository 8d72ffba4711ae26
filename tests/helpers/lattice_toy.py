"""A drafter whose distributions are tables: of the depth, plus what the token before adds."""

import dataclasses
import functools
import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.config import DrafterConfig, TargetConfig
from jaxspec.core.params import Params, Spec
from jaxspec.core.sampling.settings import make_sampling
from jaxspec.core.state import Request
from jaxspec.drafters import Drafter, DrafterRecord, Proposal
from jaxspec.drafters.base import Lookahead
from jaxspec.round.context import make_round
from jaxspec.round.draft import draft
from jaxspec.round.grow import grow
from jaxspec.round.plan import DecodeConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableConfig(DrafterConfig):
    depth: int = 4


def make_table(config: TableConfig) -> Drafter:
    """Params are `base` [B, K, V], another table for every sequence, and `bias` [V, V]."""

    def propose(params, base, token, depth):
        at = jnp.minimum(depth, config.depth - 1)[..., None]
        logits = jnp.take_along_axis(base, at, axis=1) + params["bias"][token]
        return Proposal(logits[:, :, None], hidden=logits[:, :, None])

    def start(params, state, target, root, rows):
        base = params["base"]
        return propose(params, base, root[:, None], jnp.zeros_like(root)[:, None]), base

    def expand(params, state, scratch, target, nodes, first):
        return propose(params, scratch, nodes.token, nodes.depth), scratch

    def look_ahead(params, scratch):
        def between(previous, following):
            return params["bias"][previous[..., None], following[:, :, None]]

        return Lookahead(scratch, between)

    return Drafter(
        (),
        config.depth,
        1,
        lambda batch, capacity, dtype: (),
        lambda params, state, target, committed: state,
        start,
        expand,
        look_ahead=look_ahead,
    )


TABLE = DrafterRecord(name="table", config=TableConfig, make=make_table, compared=("lattice",))


def make_block_table(config: TableConfig) -> Drafter:
    """Propose all depths at once by `base` alone."""

    def start(params, state, target, root, rows):
        return Proposal(params["base"][:, None]), None

    stepwise = make_table(config)
    return stepwise._replace(slots=config.depth, start=start, expand=None, look_ahead=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockTableConfig(TableConfig):
    pass


BLOCK_TABLE = DrafterRecord(
    name="block_table", config=BlockTableConfig, make=make_block_table, compared=("chain",)
)


@functools.partial(jax.jit, static_argnames=("builder", "budget", "scale", "temperature"))
def draft_trees(base, bias, root, noise, *, builder, budget, scale=1.0, temperature=0.0):
    """Draft a round's trees.

    Args:
      base: float32 [B, K, V], bias float32 [V, V], root int32 [B].
      noise: float32 [B, K, V] or None.

    Returns:
      (Tree [B, budget], bool []: whether the round fell back to its dense steps).
    """
    settings = {"builder": builder, "budget": budget, "score_temperature": scale}
    round, state = begin_round(base, bias, root, temperature, **settings)
    drafted = draft(round, state, noise)
    return grow(round, state, drafted), jnp.asarray(drafted.fell_back)


def begin_round(base, bias, root, temperature, *, block=False, controls=None, **settings):
    """Make a `Round` of the table's drafter, and the part of a state that drafting reads.

    Args:
      base, bias, root: see `draft_trees`.
      block: propose all depths at once, by `base` alone.
      controls: of the policy.
      settings: of `DecodeConfig`.
    """
    batch, depth, vocab = base.shape
    target = TargetConfig(
        hidden_size=4, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=4, ffn_size=4,
        vocab_size=vocab, max_positions=8,
    )  # fmt: skip
    name = "block_table" if block else "table"
    config = (BlockTableConfig if block else TableConfig)(vocab_size=vocab, depth=depth)
    params = Params({}, {}, Spec(target)).with_drafter(name, config, {"base": base, "bias": bias})
    sampling, values = make_sampling(temperature)
    none = np.zeros(batch, np.int32)
    request = Request(none, none, 0, none.astype(np.uint32), values, controls)
    round = make_round(params, request, DecodeConfig(name, sampling, **settings))
    cache = SimpleNamespace(length=jnp.asarray(none))
    done = jnp.zeros(batch, bool)
    state = SimpleNamespace(root=root, done=done, draft=(), cache=cache, block=None, control=())
    return round, state


def best_paths(base, bias, root, count, noise=None, scale=1.0, temperature=1.0):
    """(log-probability in float64, path) of the best prefixes of one sequence, by brute force."""
    depth, vocab = base.shape
    noise = np.zeros_like(base) if noise is None else noise
    before = np.concatenate([np.arange(vocab), [root]])
    scores = ((base[:, None] + bias[before]) / temperature + noise[:, None]).astype(np.float64)
    scores /= scale
    rows = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    found = []
    for length in range(1, depth + 1):
        for path in itertools.product(range(vocab), repeat=length):
            pairs = zip(itertools.count(), (-1, *path[:-1]), path)
            found.append((sum(rows[pair] for pair in pairs), path))
    return sorted(found, reverse=True)[:count]


def paths_of(tree, sequence=0):
    """The paths of a tree's rows but the root's, in order."""
    found = [()]
    for row in range(1, int(tree.size[sequence])):
        found.append((*found[int(tree.parent[sequence, row])], int(tree.token[sequence, row])))
    return found[1:]
