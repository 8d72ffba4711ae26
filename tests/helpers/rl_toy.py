"""A record of made-up rounds: W = 2, three draft steps, sizes of 2 and 4 rows."""

import numpy as np

from jaxspec.costs.round_costs import make_costs
from jaxspec.policies.learned.ltd_features import pool_size
from training.replay.records import Record

WIDTH, STEPS, SIZES, LENGTH = 2, 3, (2, 4), 40
TIMES = make_costs(
    (1, 2, 4),
    (0, 100),
    0.0,
    [[0.004, 0.008], [0.005, 0.01], [0.01, 0.02]],
    plain=(0.003, 0.006),
    step=(0.001, 0.002),
    about={"model": "toy", "drafter": "eagle3", "builder": "dynamic", "device": "cpu"},
)


def make_record(texts: int = 8, seed: int = 0) -> Record:
    """Texts of 40 positions. Where the first score is near 0, rounds that go deep and wide commit
    seven tokens, else one.
    """
    rng = np.random.default_rng(seed)
    count = texts * LENGTH
    good = rng.random(count) < 0.5
    scores = np.sort(-rng.uniform(1.0, 5.0, (count, pool_size(WIDTH, STEPS))), axis=1)[:, ::-1]
    scores += np.where(good, 0.9, -6.0)[:, None]
    deep = np.arange(STEPS + 1)[:, None] + np.zeros(len(SIZES), int)
    committed = np.where(good[:, None, None], 1 + 2 * deep * (np.arange(len(SIZES)) > 0), 1)
    place = np.tile(np.arange(LENGTH, dtype=np.int32), texts)
    remaining = LENGTH - place
    header = {
        "model": "toy",
        "drafter": "eagle3",
        "builder": "dynamic",
        "sees": "pool",
        "width": WIDTH,
        "steps": STEPS,
    }
    header |= {"sizes": list(SIZES), "domains": ["code", "math"] * (texts // 2), "score_scale": 1.0}
    committed = np.minimum(committed, remaining[:, None, None]).astype(np.int8)
    numbers = np.repeat(np.arange(texts, dtype=np.int32), LENGTH)
    scores = scores.astype(np.float16)
    order = np.argsort(-scores, axis=1, kind="stable").astype(np.int16)
    return Record(header, scores, committed, 10 + place, remaining, numbers, order)
