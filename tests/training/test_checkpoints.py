"""Damaged, half-written and foreign checkpoints, and disks that are full."""

import contextlib
import gc
import resource
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from training.run.checkpoints import CheckpointError, Checkpoints

# Orbax abandons its other reads when one of several fails; they complain whenever they are
# collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True, scope="module")
def collect_abandoned_reads():
    """Collect them here, so that they don't complain in a test of another module."""
    yield
    gc.collect()


@contextlib.contextmanager
def opened(folder, recipe=(("width", 6),), **options):
    with contextlib.closing(Checkpoints(folder, dict(recipe), **options)) as checkpoints:
        yield checkpoints


def state(value):
    """Large enough that a file limit of a few kilobytes stops it, and not compressible."""
    noise = np.random.default_rng(value).normal(size=(64, 64)).astype(np.float32)
    return {"params": {"kernel": jnp.asarray(noise)}, "opt_state": (jnp.int32(value), ())}


@pytest.fixture
def folder(tmp_path):
    """Checkpoints after 3 and 6 steps."""
    with opened(tmp_path / "checkpoints") as checkpoints:
        for step in (3, 6):
            checkpoints.save(step, state(step))
    return tmp_path / "checkpoints"


def restored(folder, **options):
    with opened(folder, **options) as checkpoints:
        return checkpoints.restore(state(0))


def test_the_newest_is_restored_and_read(folder):
    step, found = restored(folder)
    assert step == 6 and found["opt_state"][0] == 6
    np.testing.assert_array_equal(found["params"]["kernel"], state(6)["params"]["kernel"])
    recipe, found = Checkpoints.read(folder)
    assert recipe == {"width": 6} and isinstance(found["params"]["kernel"], np.ndarray)
    np.testing.assert_array_equal(found["params"]["kernel"], state(6)["params"]["kernel"])


@pytest.mark.parametrize("victim", ["state", "recipe"])
@pytest.mark.parametrize("how", ["halve", "remove"])
def test_a_damaged_checkpoint_is_named_with_the_one_before_it(folder, victim, how):
    for path in [path for path in (folder / "6" / victim).rglob("*") if path.is_file()]:
        if how == "halve":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        else:
            path.unlink()
    with pytest.raises(
        CheckpointError,
        match=r"checkpoints/6 (cannot be read|is truncated): delete it to continue from .*/3 ",
    ):
        restored(folder)
    shutil.rmtree(folder / "6")
    assert restored(folder)[0] == 3


def test_any_damaged_file_of_the_state_is_noticed(folder):
    """Each file alone, cut short by a third, is refused or not needed: the weights that come back
    are never others.
    """
    whole, refused = folder.with_name("whole"), 0
    shutil.copytree(folder, whole)
    files = [path.relative_to(folder) for path in (folder / "6").rglob("*") if path.is_file()]
    for name in files:
        data = (whole / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) * 2 // 3])
        try:
            found = restored(folder)[1]
            np.testing.assert_array_equal(found["params"]["kernel"], state(6)["params"]["kernel"])
        except CheckpointError:
            refused += 1
        (folder / name).write_bytes(data)
    assert refused >= 2


def test_leftovers_of_a_killed_save_are_not_picked_up(folder):
    shutil.copytree(folder / "6", folder / "9.orbax-checkpoint-tmp-123")
    shutil.rmtree(folder / "9.orbax-checkpoint-tmp-123" / "state")
    assert restored(folder)[0] == 6
    assert sorted(path.name for path in folder.iterdir()) == ["3", "6"]


def test_a_full_disk_names_the_last_good_checkpoint(folder):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(folder) as checkpoints:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            with pytest.raises(
                CheckpointError,
                match=r"checkpoint 9 cannot be written .* good checkpoint: .*checkpoints/6$",
            ):
                checkpoints.save(9, state(9))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(path.name for path in folder.iterdir()) == ["3", "6"]
    assert restored(folder)[0] == 6


def test_another_recipe_is_refused(folder):
    with pytest.raises(CheckpointError, match="made with width=6, not 7: .*--loop.changed width"):
        restored(folder, recipe=(("width", 7),))
    assert restored(folder, recipe=(("width", 7),), changed=("width",))[0] == 6


def test_reading_without_a_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoints in .*train first"):
        Checkpoints.read(tmp_path / "none")
    with opened(tmp_path / "empty") as checkpoints:
        assert checkpoints.restore(state(0)) is None and checkpoints.last_good() == "none"
    with pytest.raises(CheckpointError, match="no complete checkpoint in"):
        Checkpoints.read(tmp_path / "empty")
