"""How the commands of this package end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Exit with one line for what the user can mend (bad options, data, files, full disks), and quietly on Ctrl-C."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
