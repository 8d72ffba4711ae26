"""What `convert --to speculators` writes, loaded unedited by the speculators package (0.9).

`JAXSPEC_SPECULATORS` names a Python that has the package, if this one has not:

    python -m venv peer && peer/bin/pip install speculators==0.9.0 torch==2.13.0
    JAXSPEC_SPECULATORS=peer/bin/python make test-torch
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.drafters.base import Committed, TargetHead
from jaxspec.drafters.dflash.drafter import make_block, make_context_functions
from jaxspec.drafters.dflash.network import BlockDrafter
from jaxspec.drafters.dflash2.network import DFlash2, DFlash2Config
from jaxspec.drafters.dflash2.network import init_variables as init_dflash2
from jaxspec.drafters.dspark.network import DSparkConfig
from jaxspec.drafters.dspark.shapes import init_variables as init_dspark
from jaxspec.drafters.eagle3.network import EagleDrafter
from jaxspec.targets.head import project_draft
from jaxspec.targets.transformer import Transformer
from jaxspec.zoo.convert import convert
from training.drafters.eagle3.loss import chain_hidden

pytestmark = pytest.mark.torch
PYTHON = os.environ.get("JAXSPEC_SPECULATORS", sys.executable)
VERIFIER, LENGTH, ANCHOR = "someone/mini", 40, 24

# Loads a folder, compares its tensors with the file's, and drafts after the given features.
SCRIPT = """
import sys
import numpy as np
import torch
from safetensors.torch import load_file
from speculators import SpeculatorModel, SpeculatorModelConfig

folder, given, out = sys.argv[1:]
config = SpeculatorModelConfig.from_pretrained(folder)
config.transformer_layer_config._attn_implementation = "eager"
model = SpeculatorModel.from_pretrained(folder, config=config, dtype=torch.float32).eval()
held = {name: tensor for name, tensor in model.state_dict().items() if "verifier_" not in name}
stored = load_file(folder + "/model.safetensors")
assert set(stored) == set(held), set(stored) ^ set(held)
for name, tensor in stored.items():
    assert torch.equal(held[name], tensor.to(held[name].dtype)), name
arrays = {name: torch.from_numpy(x) for name, x in np.load(given).items()}
tokens, features = arrays["tokens"].long()[None], arrays["features"][None]
documents = torch.zeros_like(tokens)
with torch.no_grad():
    if type(model).__name__ == "Eagle3DraftModel":
        following = torch.roll(tokens, -1, 1)
        found = model(features, following, documents, ttt_steps=2)
        drafted = torch.cat([step[:, : len(tokens[0]) - 2] for step in found], 1)
    else:
        mask = torch.zeros_like(tokens)
        mask[0, int(arrays["anchor"])] = 1
        states = features[..., : model.hidden_size]
        found = model._backbone_forward(features, tokens, mask, states, documents, max_anchors=1)
        drafted = found[1].argmax(-1)
np.savez(out, drafted=drafted[0].numpy())
"""


NETWORKS = {"dflash": BlockDrafter, "dflash2": DFlash2, "dspark": BlockDrafter}


@pytest.fixture(scope="module")
def peer(tmp_path_factory):
    """A folder like the hub's cache, offline, in which `VERIFIER` is `mini`."""
    found = subprocess.run([PYTHON, "-c", "import speculators"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip("speculators is not installed: see this module")
    cache, revision = tmp_path_factory.mktemp("hub"), "a" * 40
    model = cache / f"models--{VERIFIER.replace('/', '--')}"
    # In full: the weights that ship are in codes.
    jaxspec.save(jaxspec.load("mini", drafter={}, dtype="float32"), model / "snapshots" / revision)
    absent = model / ".no_exist" / revision / "model.safetensors.index.json"
    for file, text in ((model / "refs" / "main", revision), (absent, "")):
        file.parent.mkdir(parents=True)
        file.write_text(text)
    return os.environ | {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """`mini` with drafters of random weights beside its own, and prompt features of every layer."""
    params = jaxspec.load("mini", drafter={"dflash": "dflash", "eagle3": "eagle3"}, dtype="float32")
    own = params.spec.drafter("dflash")
    fields = {one.name: getattr(own, one.name) for one in dataclasses.fields(own)}
    fields |= {"draft_vocab_size": None}
    random = np.random.default_rng(0)
    for name, config, init in (
        ("dflash2", DFlash2Config(**fields, selector_rank=16), init_dflash2),
        ("dspark", DSparkConfig(**fields, markov_rank=16), init_dspark),
    ):
        weights = jax.tree.map(
            lambda x: jnp.asarray(x + random.normal(scale=0.05, size=x.shape), x.dtype),
            init(config),
        )
        params = params.with_drafter(name, config, weights)
    eagle, weights = params.spec.drafter("eagle3"), params.drafters["eagle3"]
    for name, count in (("whole", 1), ("each", 3)):
        sizes = {f"fusion_norm_{i}": 3 * eagle.target_hidden_size // count for i in range(count)}
        norms = {path: {"scale": random.uniform(0.2, 2, size)} for path, size in sizes.items()}
        own = weights | {"params": weights["params"] | jax.tree.map(jnp.float32, norms)}
        config = dataclasses.replace(eagle, fusion_norm=name, norm_output=name == "each")
        params = params.with_drafter(name, config, own)
    folder = tmp_path_factory.mktemp("model") / "mini"
    jaxspec.save(params, folder)
    return folder


def draft(params, tokens, features):
    """The most probable tokens, or draft tokens, of what speculators computes too."""
    (kind, config), variables = params.spec.drafters[0], next(iter(params.drafters.values()))
    transformer = Transformer(params.spec.target)
    head = TargetHead(
        lambda ids: transformer.apply(params.target, ids, method="embed"),
        lambda hidden: transformer.apply(params.target, hidden, method="logits"),
    )
    if kind == "eagle3":
        # Two steps after every pair, over the text's own tokens.
        places = jnp.arange(LENGTH)[None]
        batch = {
            "tokens": tokens[None],
            "positions": places,
            "anchors": places[:, : LENGTH - 2] + 1,
        }
        table = head.embed(jnp.arange(params.spec.target.vocab_size))
        hidden = chain_hidden(config, variables, table, batch, features, 2)
        drafted = EagleDrafter(config).apply(variables, hidden, method="logits").argmax(-1)
        return drafted[0].T.reshape(-1)
    module = NETWORKS[kind](config)
    backbone = variables["params"].get("backbone", variables["params"])
    variables = {**variables, "params": backbone}
    init, absorb = make_context_functions(config, module)
    new = Committed(tokens[None], tokens[None], features, jnp.array([0]), jnp.array([ANCHOR]))
    cache = absorb(variables, init(1, 64, jnp.float32), head, new)
    slots, positions = make_block(config, cache, head, tokens[None, ANCHOR])
    hidden = module.apply(variables, slots, positions, cache)
    own = "lm_head" in variables.get("draft", {})
    logits = project_draft(variables, hidden) if own else head.unembed(hidden)
    return logits.argmax(-1)[0]


@pytest.mark.parametrize("name", ["dflash", "eagle3", "whole", "each", "dspark", "dflash2"])
def test_it_loads_and_drafts_the_same(peer, model, tmp_path, name):
    kind = "eagle3" if name in ("whole", "each") else name
    folder = convert(name, tmp_path / "out", "speculators", model, VERIFIER)
    params = jaxspec.load("mini", drafter={kind: folder}, dtype="float32")
    random = np.random.default_rng(1)
    layers = len(params.spec.drafter(kind).feature_layers)
    tokens = random.integers(0, 4096, LENGTH).astype(np.int32)
    features = random.normal(size=(LENGTH, layers * params.spec.target.hidden_size))
    features = features.astype(np.float32)
    np.savez(tmp_path / "given.npz", tokens=tokens, features=features, anchor=ANCHOR)
    places = [folder, tmp_path / "given.npz", tmp_path / "found.npz"]
    done = subprocess.run(
        [PYTHON, "-c", SCRIPT, *map(str, places)], env=peer, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = np.load(tmp_path / "found.npz")["drafted"]
    ours = np.asarray(draft(params, jnp.asarray(tokens), jnp.asarray(features)[None]))
    kept = slice(None) if kind == "eagle3" else slice(1, None)  # where both are defined
    np.testing.assert_array_equal(found[kept], ours[kept])
