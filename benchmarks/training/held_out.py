"""What a drafter with a rank head does on held-out text: its rank classes, and acceptance by slot.

These are SpecBlock's table 3 and figure 5. The text is the target's own greedy answers, so a slot
that hits is one that a round of a chain would accept. Every position of an answer is an anchor, and
blocks follow one another as in a chain: each after the last slot of the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.bench.report.definitions import divide
from jaxspec.bench.report.table import Column, Table, fixed, percent
from jaxspec.core.params import Params
from jaxspec.io.text.prompt_files import LabelledPrompt
from training.data.packing import PackedRows, pack_rows
from training.data.pipeline import find_anchors
from training.data.samples import Sample
from training.drafters.specblock.slots import SlotLosses, make_specblock_slot_losses
from training.loss.objective import LossOptions
from training.loss.terms import compute_slot_weights, gather
from training.policies.options import encode_prompts

# Ranks of the target's token in a slot's list, by class.
RANKS = ("1", "2 to 4", "5 to 10", "above 10")


class SlotCounts(NamedTuple):
    """Counts over all anchors, of a chain of D slots.

    Attributes:
      classes: int [C, C], slots of valid prefixes by their class and by the class that was named.
      outside: int, further ones whose token cannot be drafted.
      right: int [D, 2], hits and slots, whatever came before.
      valid: int [D, 2], hits and slots, of those before which all slots hit.
    """

    classes: Any
    outside: Any
    right: Any
    valid: Any


def answer_prompts(
    params: Params, prompts: Sequence[LabelledPrompt], max_new_tokens: int
) -> PackedRows:
    """Let the target answer prompts greedily, and pack prompts and answers, which are to be learnt.

    Args:
      params: the target.
      prompts: held-out ones.
      max_new_tokens: of an answer.
    """
    ids = encode_prompts(params, prompts)
    outputs = jaxspec.decode(
        params, ids, drafter="ar", max_new_tokens=max_new_tokens, temperature=0.0
    )
    samples = []
    for prompt, out in zip(ids, outputs, strict=True):
        tokens = np.array([*prompt, *out.tokens], np.int32)
        samples.append(Sample(tokens, np.arange(len(tokens)) >= len(prompt)))
    return pack_rows(samples, max(len(sample.tokens) for sample in samples))


def count_slots(params: Params, name: str, rows: PackedRows, tile: int = 1024) -> SlotCounts:
    """Count what the slots of the drafter `name` do on rows of text, see `SlotCounts`.

    Args:
      params: target and drafter.
      name: of a drafter with a rank head.
      rows: from `answer_prompts`.
      tile: slots whose logits exist at a time.
    """
    config, variables = params.spec.drafter(name), params.drafters[name]
    losses_of = make_specblock_slot_losses(config, params.spec.target, LossOptions(tile=tile))
    drafted = {"draft": variables["draft"]} if "draft" in variables else {}

    @jax.jit
    def count(weights, target, batch):
        cuts = jnp.full((1, config.blocks - 1), config.slots, jnp.int32)
        slots = losses_of({"params": weights}, target, batch, cuts)
        paired = gather(batch["positions"], batch["anchors"]) > 0
        learnt = compute_slot_weights(batch, config.depth + 1)[..., 1:] > 0
        return count_chains(slots, learnt & paired[..., None])

    total = None
    for row in range(len(rows.tokens)):
        batch = _one_row(rows, row)
        found = count(variables["params"], params.target | drafted, batch)
        found = jax.tree.map(np.asarray, found)
        total = found if total is None else jax.tree.map(np.add, total, found)
    assert total is not None  # `pack_rows` makes at least one row
    return total


def count_chains(slots: SlotLosses, learnt: jax.Array) -> SlotCounts:
    """Count one batch.

    Args:
      slots: results [blocks, B, A, K] of whole blocks.
      learnt: bool [B, A, blocks * K], whether a slot counts.
    """
    chain = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2), slots)  # [B, A, blocks, K, ...]
    chain = jax.tree.map(lambda x: x.reshape(*x.shape[:2], -1, *x.shape[4:]), chain)
    hit = chain.hit & chain.drafted
    before = jnp.cumprod(jnp.pad(hit[..., :-1], ((0, 0), (0, 0), (1, 0)), constant_values=1), -1)
    valid = learnt & (before > 0)
    known, named = valid & chain.drafted, chain.ranks.argmax(-1)
    eye = jnp.eye(chain.ranks.shape[-1], dtype=jnp.int32)
    classes = jnp.einsum("baki,bakj,bak->ij", eye[chain.wanted], eye[named], known.astype(int))

    def pair(counted):
        return jnp.stack([(hit & counted).sum((0, 1)), counted.sum((0, 1))], axis=-1)

    return SlotCounts(classes, (valid & ~chain.drafted).sum(), pair(learnt), pair(valid))


def describe_slots(counts: SlotCounts, slots: int) -> dict[str, Any]:
    """Turn counts into the figures of table 3 and figure 5, ready for JSON.

    Returns:
      `positions` (slots of valid prefixes whose token can be drafted), `outside` (others),
      `classes`: share, precision, recall and F1 of each; `confusion`; and `slots`: block and slot
      from 1, `accuracy` whatever came before, `accepted` (share of chains of which this slot is
      accepted) and `conditional` (given that the slots before are).
    """
    matrix = np.asarray(counts.classes)
    wanted, named, both = matrix.sum(1), matrix.sum(0), np.diag(matrix)
    total = int(matrix.sum())
    classes = [
        {
            "ranks": RANKS[c],
            "share": divide(wanted[c], total),
            "precision": divide(both[c], named[c]),
            "recall": divide(both[c], wanted[c]),
            "f1": divide(2 * both[c], wanted[c] + named[c]),
        }
        for c in range(len(matrix))
    ]
    found = [
        {
            "block": d // slots + 1,
            "slot": d % slots + 1,
            "accuracy": divide(*counts.right[d]),
            "accepted": divide(counts.valid[d, 0], counts.right[d, 1]),
            "conditional": divide(*counts.valid[d]),
        }
        for d in range(len(counts.valid))
    ]
    return {
        "positions": total,
        "outside": int(counts.outside),
        "classes": classes,
        "confusion": matrix.tolist(),
        "slots": found,
    }


def analyse_held_out(
    bundles: Sequence[Params], name: str, prompts: Sequence[LabelledPrompt], max_new_tokens: int
) -> dict[str, Any]:
    """Analyse drafters of several seeds on the same held-out answers, their counts together.

    Args:
      bundles: the same target with a drafter of each seed.
      name: of the drafter in each.
      prompts: held-out ones.
      max_new_tokens: of an answer.

    Returns:
      See `describe_slots`; and under `seeds` the same of each bundle.
    """
    rows = answer_prompts(bundles[0], prompts, max_new_tokens)
    counts = [count_slots(bundle, name, rows) for bundle in bundles]
    slots = bundles[0].spec.drafter(name).slots
    total = jax.tree.map(lambda *each: sum(each), *counts)
    return describe_slots(total, slots) | {"seeds": [describe_slots(one, slots) for one in counts]}


def tabulate_classes(report: dict[str, Any]) -> Table:
    """Tabulate the rank classes (table 3)."""
    columns = [Column("ranks"), Column("share", percent(1))]
    columns += [Column(title, fixed(3)) for title in ("precision", "recall", "F1")]
    keys = ("ranks", "share", "precision", "recall", "f1")
    return Table(columns, [[one[key] for key in keys] for one in report["classes"]])


def tabulate_slots(report: dict[str, Any]) -> Table:
    """Tabulate acceptance by slot (figure 5)."""
    titles = ("accuracy", "accepted α_k", "conditional α_{m,j}")
    columns = [Column("k"), Column("m,j"), *(Column(title, fixed(3)) for title in titles)]
    rows = [
        [k, f"{one['block']},{one['slot']}", one["accuracy"], one["accepted"], one["conditional"]]
        for k, one in enumerate(report["slots"], 1)
    ]
    return Table(columns, rows)


def _one_row(rows: PackedRows, row: int) -> dict[str, np.ndarray]:
    """Make a batch of one row, with an anchor wherever a block may begin."""
    batch = {name: array[row : row + 1] for name, array in rows._asdict().items()}
    places = np.flatnonzero(find_anchors(batch["segments"], batch["loss_mask"])[0])
    anchors = np.zeros((1, rows.tokens.shape[1] - 1), np.int32)
    anchors[0, : len(places)] = places
    keep = np.arange(anchors.shape[1]) < len(places)
    return batch | {"anchors": anchors, "keep": keep[None], "rows": np.array([row], np.int32)}
