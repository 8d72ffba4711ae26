"""Decode 20 prompts in bfloat16, call by call, and print their tokens and the rows of every round.

With the argument `lies`, the clock jumps ahead at random before anything is imported that reads it.
"""

import json
import random
import sys
import time

PROMPTS = [[5 + i, 9, 40 + 7 * i, 3, 3, 9, 40 + 7 * i] for i in range(20)]


def make_lying(clock, jumps):
    """A clock that never goes back, and tells nothing of how long something took."""
    ahead = 0.0

    def lie():
        nonlocal ahead
        ahead += jumps.choice((0.0, 0.001, 0.1, 5.0))
        return clock() + ahead

    return lie


def main():
    if "lies" in sys.argv:
        jumps = random.Random(1)
        for name in ("perf_counter", "monotonic"):
            setattr(time, name, make_lying(getattr(time, name), jumps))
    from short_models import load_short

    import jaxspec

    params, found = load_short({name: name for name in ("dflash", "eagle3")}, "bfloat16"), []
    for prompt in PROMPTS:
        out = jaxspec.decode(params, prompt, max_new_tokens=24)
        found.append([out.tokens, out.per_round.rows.tolist(), out.per_round.steps.tolist()])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
