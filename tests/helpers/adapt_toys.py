"""A tiny random target with random drafters, for tests of adaptation."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from pair_toys import OF_TARGET, SIZES, VOCAB, WIDTH, bundle_of

import jaxspec
from jaxspec.adapt import AdaptOptions
from jaxspec.adapt.deciders import Decider, Decision
from jaxspec.adapt.learning.cut import SegmentShape, cut_segments
from jaxspec.adapt.learning.optimize import LearnerOptions
from jaxspec.adapt.learning.segments import empty_ring, write_segment
from jaxspec.bench.architectures import _init_drafter
from jaxspec.call.options import group_options
from jaxspec.call.run import run_session
from jaxspec.call.session import prepare
from jaxspec.core.config import TargetConfig
from jaxspec.drafters.dflash.network import BlockDrafterConfig
from jaxspec.drafters.dflash.shapes import init_head
from jaxspec.drafters.eagle3.network import EagleConfig
from jaxspec.drafters.falcon.network import FalconConfig
from jaxspec.drafters.griffin.network import GriffinConfig
from jaxspec.drafters.medusa.network import Medusa, MedusaConfig
from jaxspec.drafters.parallelspec.network import ParallelSpecConfig
from jaxspec.drafters.specblock.network import SpecBlockConfig
from training.drafters.falcon import init_falcon
from training.drafters.griffin.model import init_griffin
from training.drafters.parallelspec import init_parallelspec

TARGET = TargetConfig(
    vocab_size=VOCAB, max_positions=512, qk_norm=False, **SIZES | {"num_layers": 3}
)
PROMPTS = [[4, 9, 2, 30, 11, 5], [7, 7, 1], [3, 20, 8, 8, 2], [15, 6]]
FLAT = dict(max_new_tokens=40, builder="best_first", budget=24, policy=None)
OPTIONS = group_options(**FLAT)
SHAPE = SegmentShape(rows=64, context=16, rounds=32, depths=4)
# Sessions of all test files take the same sizes, so that they share compiled programs.
ADAPT = AdaptOptions(
    shape=SHAPE,
    learner=LearnerOptions(head_rate=1e-2, full_rate=1e-2),
    room={"head": 6, "full": 6},
    segments=8,
    rows=128,
)
ROUNDS = [PROMPTS[i % 4] for i in range(8)]


@dataclasses.dataclass
class Priced:
    """A device whose rounds, gradient steps and passes take as many seconds as a test says."""

    round_seconds: float
    seconds: float
    passes: float = 0.0
    load_seconds: float = 0.0

    def step_seconds(self, action, positions, redrafts, anchored=True):
        return self.seconds if redrafts else self.seconds / 10

    def pass_seconds(self, positions):
        return self.passes

    def read_seconds(self, positions):
        return self.passes / 10


def scripted(decisions):
    """A decider that repeats decisions, then skips."""

    def decide(state, query):
        return state, decisions[query.index] if query.index < len(decisions) else Decision()

    return Decider(dict, decide)


@functools.cache
def make_params(method: str = "jetspec") -> jaxspec.Params:
    """The target with one drafter of random weights."""
    if method == "medusa":
        config = MedusaConfig(vocab_size=VOCAB, feature_layers=(3,), hidden_size=WIDTH, heads=4)
        shapes = jax.eval_shape(
            lambda: Medusa(config).init(
                jax.random.key(0),
                jnp.zeros((1, WIDTH)),
                method=lambda m, x: m.logits(m(x)),
            )
        )
    elif method in ("eagle3", "specblock"):
        kind = EagleConfig if method == "eagle3" else SpecBlockConfig
        more = {} if method == "eagle3" else {"rank_hidden": 8}
        config = kind(**SIZES, **OF_TARGET, **more)
        shapes = jax.eval_shape(lambda: _init_drafter(config))
    elif method == "parallelspec":
        config = ParallelSpecConfig(**SIZES, **OF_TARGET, slots=4)
        shapes = jax.eval_shape(lambda: init_parallelspec(config, 0))
    elif method == "griffin":
        config = GriffinConfig(**SIZES, **OF_TARGET | {"feature_layers": (3,)})
        shapes = jax.eval_shape(lambda: init_griffin(config, 0))
    elif method == "falcon":
        config = FalconConfig(**SIZES, **OF_TARGET, slots=2, blocks=2, lstm_size=6)
        shapes = jax.eval_shape(lambda: init_falcon(config, 0))
    else:
        config = BlockDrafterConfig(
            **SIZES, **OF_TARGET, block_size=5, mask_token_id=VOCAB - 1, causal=True
        )
        shapes = jax.eval_shape(lambda: init_head(config))
    random = np.random.default_rng(1)
    variables = jax.tree.map(
        lambda leaf: jnp.asarray(random.normal(scale=0.2, size=leaf.shape), jnp.float32), shapes
    )
    return bundle_of(method, config, variables, TARGET)


def run_with_evidence(params, prompts, rows=128, trace=False, **options):
    """The outputs, the last state and the session of a call that gathers evidence."""
    session = prepare(params, prompts, **group_options(**FLAT | options))
    config = dataclasses.replace(session.config, evidence=rows)
    session = dataclasses.replace(session, config=config)
    return *run_session(session, trace), session


def fill_ring(segments):
    """A ring that holds some segments, in their order."""
    ring = empty_ring(segments[0], len(segments))
    for at, one in enumerate(segments):
        ring = write_segment(ring, one, np.int32(at))
    return ring


@functools.cache
def gather(method):
    """Weights of a toy drafter, and a ring of segments with the features that it reads.

    A drafter learns from any rounds. So all that read the same features share JetSpec's, whose
    program is compiled anyway.
    """
    source = "medusa" if method == "medusa" else "jetspec"
    params = make_params(source)
    _, state, _ = run_with_evidence(params, PROMPTS, drafter=source)
    ring = fill_ring(list(cut_segments(params, state, PROMPTS, SHAPE, (0, 0))))
    params = make_params(method)
    return params, params.drafter(method)["params"], ring
