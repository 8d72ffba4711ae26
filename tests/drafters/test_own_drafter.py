"""A drafter that a test defines and registers decodes, saves, loads and is trained like those of
the library.
"""

import dataclasses
import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import own_drafter
import own_training
import pytest
from own_drafter import BIGRAM, BigramConfig, make_bigram
from own_training import BIGRAM_TRAINING, BigramOptions
from slow_cases import slow_except

import jaxspec
from jaxspec.bench.measure.methods import parse_methods
from jaxspec.call.options import group_options
from jaxspec.core.config import DrafterConfig, TargetConfig
from jaxspec.core.params import Params, Spec
from jaxspec.drafters import DrafterRecord
from jaxspec.drafters.registry import make_drafter
from jaxspec.targets.transformer import Transformer
from jaxspec.training import drafters as trained
from jaxspec.training.dry_run import describe_run
from jaxspec.training.run.metrics import read_metrics
from jaxspec.training.train_drafter import parse_options, train_drafter
from jaxspec.zoo.inspect import describe_checkpoint

VOCAB, PROMPTS, NEW = 16, [[4, 9, 2, 14], [7]], 12
SIZES = dict(hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, ffn_size=16)
TARGET = TargetConfig(**SIZES, vocab_size=VOCAB, max_positions=128)


@pytest.fixture
def bigram():
    jaxspec.drafters.register(BIGRAM)
    yield BIGRAM
    jaxspec.drafters.unregister(BIGRAM.name)


@pytest.fixture
def trainable(bigram):
    trained.register(BIGRAM_TRAINING)
    yield BIGRAM_TRAINING
    trained.unregister(BIGRAM_TRAINING.name)


@pytest.fixture(scope="module")
def params():
    """A random target with the table of what it says after every single token."""
    generator = np.random.default_rng(3)
    model, tokens = Transformer(TARGET), jnp.arange(VOCAB)[:, None]
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)
    target = jax.tree.map(
        lambda leaf: jnp.asarray(generator.normal(scale=0.8, size=leaf.shape), jnp.float32), shapes
    )

    def follow(model):
        return model.logits(model(tokens, jnp.zeros_like(tokens)).hidden[:, 0])

    head = {"lm_head": jnp.asarray(generator.normal(size=(16, VOCAB)), jnp.float32)}
    target = {"params": target["params"] | head}
    table = model.apply(target, method=follow)
    plain = Params(target, {}, Spec(TARGET))
    return plain.with_drafter(
        "bigram", BigramConfig(vocab_size=VOCAB), {"params": {"table": table}}
    )


@pytest.mark.parametrize(
    ("builder", "temperature"),
    slow_except(
        [("best_first", 1.0)],
        itertools.product(["chain", "best_first"], [0.0, 1.0]),
    ),
)
@pytest.mark.thorough
def test_it_decodes_losslessly(bigram, params, builder, temperature):
    options = dict(max_new_tokens=NEW, temperature=temperature)
    plain = jaxspec.decode(params, PROMPTS, drafter="ar", **group_options(**options))
    drafted = jaxspec.decode(params, PROMPTS, **group_options(builder=builder, **options), budget=8)
    assert [out.tokens for out in drafted] == [out.tokens for out in plain]
    assert sum(out.stats.rounds for out in drafted) < len(PROMPTS) * (NEW - 1), "none accepted"


def test_it_is_saved_loaded_and_described(bigram, params, tmp_path):
    jaxspec.save(params, tmp_path)
    loaded = jaxspec.load(tmp_path, dtype="float32")
    assert loaded.spec.drafters == params.spec.drafters
    np.testing.assert_array_equal(
        loaded.drafters["bigram"]["params"]["table"], params.drafters["bigram"]["params"]["table"]
    )
    alone = jaxspec.load(tmp_path, drafter=str(tmp_path / "drafters" / "bigram"))
    assert [name for name, _ in alone.spec.drafters] == ["bigram"]
    about = describe_checkpoint(tmp_path / "drafters" / "bigram")
    assert (about["family"], about["readable"], about["layout"]) == ("bigram", True, "native")


def test_files_that_do_not_fit_are_refused_in_one_line(bigram, params, tmp_path):
    jaxspec.save(params, tmp_path)
    path = tmp_path / "drafters" / "bigram" / "config.json"
    hf = json.loads(path.read_text())
    for change, message in (
        ({"jaxspec": hf["jaxspec"] | {"vocab_size": 9}}, "its vocabulary has 9 tokens"),
        ({"jaxspec": {"depth": 2}}, "lacks 'jaxspec.vocab_size'"),
        ({"jaxspec": [2]}, r"jaxspec must be an object, not \[2\]"),
        ({"architectures": ["Oak"]}, "unknown drafter architecture 'Oak'.*supported: .*bigram"),
    ):
        path.write_text(json.dumps(hf | change))
        with pytest.raises(ValueError, match=message):
            jaxspec.load(tmp_path)


def test_all_methods_include_it(bigram, params):
    names = [method.name for method in parse_methods("all", budget=8, spec=params.spec)]
    always = ["prompt_lookup-chain", "suffix-chain", "suffix-lattice"]
    assert names == ["ar", "bigram-chain", "bigram-best_first", *always]


def test_it_is_trained(trainable, params, tmp_path):
    """By the command line of `jaxspec train`, with its own preset and options."""
    model, run, out = (tmp_path / name for name in ("model", "run", "out"))
    jaxspec.save(Params(params.target, {}, Spec(TARGET)), model)
    text = [[(first + 3 * i) % VOCAB for i in range(24)] for first in range(8)]
    (tmp_path / "text.jsonl").write_text(
        "".join(json.dumps({"tokens": one, "prompt_length": 1}) + "\n" for one in text)
    )
    words = ["--preset", "bigram", "--target", str(model), "--model.depth", "3"]
    words += ["--data.files", str(tmp_path / "text.jsonl"), "--method.bigram.smoothing", "0.1"]
    options = parse_options([*words, "--loop.run", str(run), "--out", str(out)])
    assert f"{VOCAB * VOCAB:,} parameters" in describe_run(options)
    made = train_drafter(options, words)
    losses = [line["loss"] for line in read_metrics(run / "metrics.jsonl") if "loss" in line]
    assert len(losses) > 2 and losses == sorted(losses, reverse=True)
    table = made.drafters["bigram"]["params"]["table"]
    np.testing.assert_array_equal(table.argmax(-1), (np.arange(VOCAB) + 3) % VOCAB)
    recipe = json.loads((out / "training.json").read_text())
    assert recipe["method"] == {"smoothing": 0.1} and recipe["drafter"]["depth"] == 3
    assert BIGRAM_TRAINING.what in (out / "README.md").read_text()
    found = jaxspec.load(model, drafter=str(out), dtype="float32")
    assert found.spec.drafters == made.spec.drafters


def test_a_drafter_to_train_has_names_of_its_own(trainable):
    with pytest.raises(ValueError, match="a drafter to train is called 'bigram' already"):
        trained.register(BIGRAM_TRAINING)
    other = dataclasses.replace(BIGRAM_TRAINING, name="trigram")
    with pytest.raises(ValueError, match="a preset is called 'bigram' already"):
        trained.register(other)
    with pytest.raises(ValueError, match="a group of options is called 'eagle' already"):
        trained.register(dataclasses.replace(other, presets={}, group="eagle"))
    assert BIGRAM_TRAINING.take_options({}) == BigramOptions()


def test_it_cannot_be_trained_once_it_is_unregistered(trainable):
    trained.unregister("bigram")
    with pytest.raises(ValueError, match="unknown kind 'bigram': choose one of dflash, jetspec"):
        trained.named("bigram")
    assert "bigram" not in trained.make_options() and "bigram" not in trained.list_presets()
    trained.register(BIGRAM_TRAINING)


def test_it_is_unknown_once_it_is_unregistered(params):
    with pytest.raises(ValueError, match="no drafter has a config of type BigramConfig: give its"):
        jaxspec.decode(params, PROMPTS, max_new_tokens=NEW, budget=8)


def test_names_and_configs_belong_to_one_record(bigram):
    register = jaxspec.drafters.register
    with pytest.raises(ValueError, match="a drafter is called 'bigram' already: choose another"):
        register(dataclasses.replace(BIGRAM, config=DrafterConfig))
    with pytest.raises(ValueError, match="a drafter is called 'ar' already"):
        register(dataclasses.replace(BIGRAM, name="ar"))
    with pytest.raises(ValueError, match="BigramConfig is the config of drafter 'bigram' already"):
        register(dataclasses.replace(BIGRAM, name="trigram"))


def test_two_records_may_share_a_config_class_but_no_config():
    def own(depth):
        return lambda config: config.depth >= depth

    for name, depth in (("short", 1), ("long", 5)):
        jaxspec.drafters.register(DrafterRecord(name, BigramConfig, make_bigram, own(depth)))
    try:
        assert jaxspec.drafters.record_of(BigramConfig(depth=4)).name == "short"
        with pytest.raises(ValueError, match="drafters 'short' and 'long' both own this config"):
            jaxspec.drafters.record_of(BigramConfig(depth=5))
    finally:
        jaxspec.drafters.unregister("short")
        jaxspec.drafters.unregister("long")


def test_a_drafter_without_weights_is_always_there(params):
    def always(target):
        return BigramConfig(vocab_size=target.vocab_size)

    record = dataclasses.replace(BIGRAM, name="always", weightless=always, retrieval=True)
    jaxspec.drafters.register(record)
    try:
        assert params.spec.drafter("always") == always(TARGET)
    finally:
        jaxspec.drafters.unregister("always")
    with pytest.raises(ValueError, match="unknown drafter 'always'"):
        params.spec.drafter("always")


def test_equal_configs_share_a_bundle(bigram):
    config = BigramConfig(vocab_size=VOCAB)
    assert make_drafter(dataclasses.replace(config)) is make_drafter(config)


def test_the_documentation_shows_it():
    """In under 40 lines of code, and its training in under 50."""
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    for module, lines in ((own_drafter, 40), (own_training, 50)):
        code = Path(module.__file__).read_text().split('"""\n\n', 1)[1]
        code = code.replace("from own_drafter import BigramConfig\n", "")
        assert code in page
        assert len([line for line in code.splitlines() if line.strip()]) < lines
