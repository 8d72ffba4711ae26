"""A session: decode calls whose drafter learns from what it got wrong.

The text stays that of the target, whatever is published. Evidence holds text and stays in memory;
a call with `adapt=False` leaves none.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxspec.adapt.adaptation import Adaptation, Decoded
from jaxspec.adapt.learning.cut import cut_segments
from jaxspec.call.options import Speculation
from jaxspec.call.output import Output
from jaxspec.call.run import run_session
from jaxspec.call.session import prepare
from jaxspec.call.text.token_ids import Prompt, Prompts, is_batch
from jaxspec.core.runtime.jax_settings import under_own_settings
from jaxspec.tuner.tuner import tune


class AdaptiveSession(Adaptation):
    """Decode with a drafter that is updated while it serves; for its arguments see `Adaptation`."""

    @under_own_settings
    def decode(
        self, prompt: Prompt | Prompts, *, domain: str = "", adapt: bool = True, **options: Any
    ) -> Output | list[Output]:
        """Generate text as `jaxspec.decode` does, and learn from it.

        Args:
          domain: what the prompts are about; windows are compared domain by domain.
          adapt: whether this call may be learned from. Without it, nothing of it is gathered.
          options: of `jaxspec.decode`, without `drafter` and `trace`.

        Raises:
          TypeError, ValueError: see `jaxspec.decode`.
        """
        given = options.get("speculation") or Speculation()
        if given.lookup is None:  # copied tokens are no evidence of the drafter
            options["speculation"] = dataclasses.replace(given, lookup=False)
        call, hooks = tune(prepare(self.params, prompt, drafter=self.drafter, **options))
        # All calls of a session run one program, so that a rule that rests compiles no other.
        rows = self.options.rows if adapt and self.decider.learns else 0
        config = dataclasses.replace(call.config, evidence=rows)
        call = dataclasses.replace(call, config=config)
        began = self.clock()
        outputs, state = run_session(call, hooks=hooks)
        seconds = self.clock() - began
        if adapt:
            prompts = [ids[:n] for ids, n in zip(call.tokens, call.lengths, strict=True)]
            seed = (self.seed, self.queries)
            segments = cut_segments(self.params, state, prompts, self.shape, seed)
            tokens = sum(out.stats.emitted - 1 for out in outputs)
            rounds = sum(out.stats.rounds for out in outputs)
            self.learn(Decoded(domain, tokens, rounds, seconds, self.version, segments))
        return outputs if is_batch(prompt) else outputs[0]
