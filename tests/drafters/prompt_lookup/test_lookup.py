"""Prompt lookup against plain Python."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.drafters.base import Committed
from jaxspec.drafters.prompt_lookup.drafter import PromptLookupConfig, make_lookup_drafter

CONFIG = PromptLookupConfig(vocab_size=4, depth=3, longest=3, shortest=1)


def looked_up(text: list[int]) -> list[int]:
    """What followed the latest occurrence of the longest n-gram at the text's end."""
    for n in range(min(CONFIG.longest, len(text)), CONFIG.shortest - 1, -1):
        for end in range(len(text) - 1, n - 1, -1):
            if text[end - n : end] == text[len(text) - n :]:
                return text[end : end + CONFIG.depth]
    return []


def test_the_longest_and_latest_occurrence_is_continued():
    drafter, rng = make_lookup_drafter(CONFIG), np.random.default_rng(0)
    texts = [rng.integers(0, 4, 20).tolist() for _ in range(64)] + [
        [0, 1, 2, 3] * 5,
        [0] * 20,
        [*range(4)] * 5,
    ]
    tokens = jnp.asarray(texts)
    state = drafter.init(len(texts), 24, jnp.float32)
    absorb = jax.jit(lambda state, new: drafter.absorb({}, state, None, new))
    start = jax.jit(lambda state, root: drafter.start({}, state, None, root, 3)[0].logits)
    # In parts of 4, 6 and 3 tokens, some of which do not count; the last token is the root.
    begun, found = 0, set()
    for part, count in ((6, 4), (6, 6), (6, 3), (6, 0)):
        token, following = tokens[:, begun : begun + part], tokens[:, begun + 1 : begun + part + 1]
        new = Committed(
            token, following, None, jnp.full(len(texts), begun), jnp.full(len(texts), count)
        )
        state, begun = absorb(state, new), begun + count
        logits = np.asarray(start(state, tokens[:, begun]))[:, 0]
        for text, row in zip(texts, logits, strict=True):
            expected = looked_up(text[: begun + 1])
            found.add(len(expected))
            assert [int(slot.argmax()) for slot in row if slot.max() == 0] == expected
            assert (np.isfinite(row).sum(-1) == [i < len(expected) for i in range(3)]).all()
    assert found == {0, 1, 2, 3}
