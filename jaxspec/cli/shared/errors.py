"""What a command prints for a user's mistake, and its exit status."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

from jaxspec.core.runtime import distribution, interrupts
from jaxspec.core.runtime.jax_settings import own_process

USER_ERROR = 2
_FULL = (errno.ENOSPC, errno.EDQUOT)


def report_errors(call: Callable[[], int]) -> int:
    """Run a command; a user's mistake is one line on standard error, and the exit status 2."""
    # transformers is imported only for tokenizers; keep it from warning that PyTorch is missing.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        distribution.check()
        with own_process():
            return call()
    except BrokenPipeError:  # the pipe's reader is gone, so nothing more can be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, ImportError) as error:
        print(f"jaxspec: error: {_describe(error)}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        return interrupts.STATUS


def _describe(error: Exception) -> str:
    """Return the error's message as one line."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        advice = ": free some, or write elsewhere" if error.errno in _FULL else ""
        return f"{error.filename}: {error.strerror}{advice}"
    return " ".join(str(error).split())
