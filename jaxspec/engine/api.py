"""`decode` and `stream`: from prompts to texts around the device loop."""

from __future__ import annotations

import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.params import Params
from jaxspec.core.state import DecodeState
from jaxspec.engine import prompts as prompting
from jaxspec.engine.compilations import compilations
from jaxspec.engine.loop import run
from jaxspec.engine.output import DraftTree, Output, PerRound, Round, Stats
from jaxspec.engine.session import Session, precision, prefilled, prepare
from jaxspec.engine.stops import find_stop, safe_length

# Rounds between two looks at the text, when there are stop strings to look for.
ROUNDS_PER_LOOK = 8


def decode(params: Params, prompt, *, trace: bool = False, **options) -> Output | list[Output]:
    """Generate text; the drafter changes how fast, never what.

    Args:
      params: from `jaxspec.load`.
      prompt: str, token ids, chat messages ([{"role", "content"}, …]), or a list of these (then the
        result is a list).
      max_new_tokens: tokens to generate at most (256).
      temperature: 0.0 is greedy. top_k, top_p, min_p: restrict sampling, in this order (None).
      seed: with the prompt, the only source of randomness (0). Equal prompts in one list are
        independent samples.
      stop: strings and/or token ids that end the text, beside the model's own EOS set. ignore_eos:
        drop that set.
      method: `ar` for plain autoregressive decoding, or the name of a loaded drafter (None: the
        first one).
      builder: `chain`, `best_first` (DDTree), `expand` (JetSpec's `accum_logp`, with `tree_width`
        children a node), `beam` (the `tree_width` best nodes of every depth, None: as many as spend
        the budget), `static` (the tree of `paths`), `dynamic` (EAGLE-2's, drafting from the
        `tree_width` best nodes of a level) or `rank_guided` (SpecBlock's). None: what suits the
        drafter.
      budget: rows verified a round, the root included (32; `static` verifies its `paths`). DDTree's
        M is M + 1 here.
      fanout: for `expand`, a rule for how many children nodes get at most, one of
        `builders.fanout.RULES` by name, or from `builders.make_rule` with settings (None:
        `tree_width` everywhere); for `rank_guided`, tokens of a slot by its rank class, as a tuple
        or one of SpecBlock's two maps, `slim` (None) or `default`.
      paths: for `static`, the tree as the rank path of every node, as in Medusa's choices: [[0],
        [0, 0], [1]] (None).
      score: what `best_first`, `expand` and `beam` order paths by: `logprob`, `entropy` (the
        drafter's entropies along the path alone) or `hybrid` (log-probability minus
        `entropy_weight`, 0.1 if None, times these entropies).
      block_size: slots of a block drafter's block, the anchor included (None: as trained).
      depth: longest drafted path of drafters that work in steps (None: the drafter's own).
      acceptance: `match`: draft-invariant, the text is the autoregressive one with the same seed;
        `sequential` and `rejection` keep the distribution only (temperature > 0).
      coupled: at temperature > 0, rank drafts under the target's own noise (True; `match` only).
      score_temperature: divisor of the draft logits when paths are scored; below 1 trees grow
        deeper, above 1 wider (None: the drafter's own).
      policy: chooses the block size of a request, whether a round drafts, how many steps it drafts
        and how many of the tree's rows are verified, see `jaxspec.policies` (None: as much as the
        caps here allow). What it learned is in `Output.policy`, for the next call.
      trace: record every round in `Output.rounds` (one host round trip a round).

    Returns:
      `Output`, or a list of them in the prompts' order.

    Raises:
      ValueError: an option out of range, an empty or too long prompt, an unknown method or builder.
    """
    session = prepare(params, prompt, **options)
    with precision(session):
        started = time.perf_counter()
        state = jax.block_until_ready(prefilled(session))
        decoding, compiled = time.perf_counter(), compilations()
        state, rounds = _finish(session, state, trace)
        seconds = (decoding - started, time.perf_counter() - decoding)
    alone = not (trace or session.stop_strings) and compilations() == compiled
    outputs = _outputs(session, state, seconds, rounds, alone)
    return outputs if prompting.is_batch(prompt) else outputs[0]


def stream(params: Params, prompt, **options) -> Iterator[str]:
    """Yield the text of `decode(params, prompt, **options)` piece by piece, a round at a time.

    Pieces are text (lists of token ids where the model has no tokenizer) and join to exactly
    `Output.text` (`.tokens`); characters that a stop string may still take back are held. The
    generator's return value is the `Output`.

    Raises:
      ValueError: as `decode`; or `prompt` is a list of prompts.
    """
    if prompting.is_batch(prompt):
        raise ValueError("stream takes one prompt: call decode for a list of them")
    session = prepare(params, prompt, **options)
    return _stream(session)


def _stream(session: Session) -> Iterator[str]:
    started = time.perf_counter()
    with precision(session):
        state = jax.block_until_ready(prefilled(session))
    decoding = time.perf_counter()
    shown = 0
    while True:
        tokens, text, _ = _readout(session, state, 0)
        done = bool(np.asarray(state.done).all()) or _stopped_by_text(session, state)[0]
        whole = tokens if text is None else text
        ready = len(whole) if done or text is None else safe_length(text, session.stop_strings)
        if ready > shown:
            yield whole[shown:ready]
            shown = ready
        if done:
            break
        with precision(session):
            state = run(session.params, session.request, state, jnp.int32(1), config=session.config)
    seconds = (decoding - started, time.perf_counter() - decoding)
    return _outputs(session, state, seconds, None)[0]


def _finish(
    session: Session, state: DecodeState, trace: bool
) -> tuple[DecodeState, list[list[Round]] | None]:
    """Run rounds until every sequence is done: all in one call, unless the host must look in
    between.
    """
    per_call = 1 if trace else ROUNDS_PER_LOOK if session.stop_strings else session.max_tokens
    rounds = [[] for _ in session.lengths] if trace else None
    while True:
        if session.stop_strings:
            state = state.replace(done=state.done | jnp.asarray(_stopped_by_text(session, state)))
        if bool(np.asarray(state.done).all()):
            return jax.block_until_ready(state), rounds
        state = run(
            session.params, session.request, state, jnp.int32(per_call), config=session.config
        )
        if trace:
            _record(state, rounds)


def _record(state: DecodeState, rounds: list[list[Round]]) -> None:
    tree, accepted = jax.device_get((state.tree, state.accepted))
    for b, record in enumerate(rounds):
        size, count = int(tree.size[b]), int(accepted.count[b])
        if count:
            rows = (
                field[b, :size] for field in (tree.token, tree.parent, tree.depth, tree.logprob)
            )
            record.append(
                Round(
                    DraftTree(*rows),
                    tuple(map(int, accepted.path[b, :count])),
                    int(accepted.bonus[b]),
                )
            )


def _stopped_by_text(session: Session, state: DecodeState) -> list[bool]:
    if not session.stop_strings:
        return [False] * len(session.lengths)
    return [_readout(session, state, b)[2] for b in range(len(session.lengths))]


def _readout(
    session: Session, state: DecodeState, index: int
) -> tuple[list[int], str | None, bool]:
    """Tokens, text, and whether a stop string ended them, of one sequence as it stands."""
    tokens = np.asarray(state.tokens)[index, : np.asarray(state.emitted)[index]].tolist()
    if session.tokenizer is None:
        return tokens, None, False
    found = (
        find_stop(tokens, session.tokenizer.decode, session.stop_strings)
        if session.stop_strings
        else None
    )
    if found is None:
        return tokens, session.tokenizer.decode(tokens), False
    return tokens[: found[0]], found[1], True


def _outputs(session, state, seconds, rounds, alone: bool = False) -> list[Output]:
    """What the caller gets; `alone` says that nothing but rounds is in `seconds[1]`, which is news
    to a policy.
    """
    host = jax.device_get(state.replace(cache=None, draft=None))
    stop_ids = set(np.asarray(session.request.stop).tolist())
    policy = session.policy and session.policy.replace(state=state.control)
    if policy and alone:
        controls = policy.settings.clocked(
            policy.controls, session.policy.state, host.control, seconds[1]
        )
        policy = policy.replace(controls=controls)
    outputs = []
    for b in range(len(session.lengths)):
        tokens, text, by_text = _readout(session, host, b)
        emitted = _cut_rounds(host.round_emitted[b][: int(host.rounds[b])], len(tokens) - 1)
        stats = Stats(
            rounds=len(emitted),
            emitted=len(tokens),
            drafted=int(host.round_drafted[b][: len(emitted)].sum()),
            accept_hist=tuple(
                np.bincount(emitted, minlength=host.accepted.path.shape[1] + 1).tolist()
            ),
            finish_reason="stop" if by_text or tokens[-1] in stop_ids else "length",
            prefill_seconds=seconds[0],
            decode_seconds=seconds[1],
        )
        counts = (
            host.round_drafted[b],
            host.round_steps[b] if host.round_steps is not None else None,
        )
        rows, steps = (None if count is None else count[: len(emitted)] for count in counts)
        block = None if host.block is None else int(host.block[b])
        context = session.lengths[b] + np.cumsum(emitted) - emitted
        per_round = PerRound(emitted, rows + 1, context, steps, block)
        traced = rounds[b][: len(emitted)] if rounds is not None else None
        outputs.append(Output(text, tokens, stats, traced, policy, per_round))
    return outputs


def _cut_rounds(emitted: np.ndarray, total: int) -> np.ndarray:
    """Tokens of each round until `total`, which a stop string may have set below their sum."""
    before = np.cumsum(emitted) - emitted
    return np.minimum(emitted, total - before)[before < total].astype(np.int64)
