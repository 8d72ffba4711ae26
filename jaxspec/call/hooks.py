"""What a running call asks of its tuner. Calls without a tuner ask `UNTUNED`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from jaxspec.call.output import Output
from jaxspec.call.session import Session
from jaxspec.core.state import DecodeState


class Hooks:
    """Moments of a call in which a tuner may look, time or choose. Each does nothing by itself."""

    def after_prefill(self, session: Session, state: DecodeState) -> Session:
        """Return the session with round costs; `state` is not changed."""
        return session

    def before_rounds(self, session: Session, state: DecodeState) -> tuple[Session, DecodeState]:
        """Run rounds of the call that show what others cost; `state` is donated then."""
        return session, state

    def may_shrink(self, session: Session) -> bool:
        """Whether a batch may shrink whose caller left that open."""
        return False

    def shrinking_pays(self, session: Session, batch: int, seconds: float) -> bool:
        """Decide whether a session goes on with a smaller batch.

        Args:
          session: of the present batch.
          batch: number of sequences of the smaller one.
          seconds: that passed since the last look.
        """
        return False

    def after_shrinking(self, session: Session, state: DecodeState) -> Session:
        """Return the session of a smaller batch with its own round costs."""
        return session

    def timing_compilation(self, session: Session) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the rounds of a session may be compiled."""
        return contextlib.nullcontext()

    def recall_pace(self, session: Session) -> float | None:
        """Return the seconds of a round of such a call; None if they are not known."""
        return None

    def note_pace(self, session: Session, seconds: float) -> None:
        """Note the seconds of a round of such a call."""

    def observe(self, session: Session, outputs: Sequence[Output], rounds_only: bool) -> None:
        """Look at a call that has ended.

        Args:
          session: as it was after its last round.
          rounds_only: whether the measured seconds are those of rounds alone.
        """


# For calls that leave nothing open: times nothing and remembers nothing.
UNTUNED = Hooks()
