"""Compiled programs on disk: where they are kept, and who decides."""

import json
import os
import subprocess
import sys
import warnings

import jax
import pytest

from jaxspec.io import program_cache

# Of XLA's own caches, the one that is on.
TIMED = "xla_gpu_per_fusion_autotune_cache_dir"
# JAX's settings, printed after jaxspec turned the cache on or left it off.
SHOW = """
import json, jax
from jaxspec.io.program_cache import keep_programs
{before}
keep_programs()
jax.jit(lambda x: x + 1)(1.0)
names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs",
         "jax_persistent_cache_enable_xla_caches", "jax_compilation_cache_max_size")
print(json.dumps([getattr(jax.config, name) for name in names]))
"""


@pytest.fixture
def show(tmp_path):
    """Return a function that prints the settings of a fresh process."""

    def run(before="", **environment):
        own = {key: value for key, value in os.environ.items() if not key.startswith("JAX_")}
        own |= {"JAX_PLATFORMS": "cpu", "JAXSPEC_CACHE": str(tmp_path)} | environment
        command = [sys.executable, "-c", SHOW.format(before=before)]
        done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_all_programs_are_kept_in_the_users_cache(show, tmp_path):
    assert show() == [str(tmp_path / "programs"), 0.0, TIMED, 4 << 30]
    assert list((tmp_path / "programs").glob("*-cache"))


@pytest.mark.parametrize("platform", ["gpu", "cpu"])
@pytest.mark.parametrize("chosen", ["all", "xla_gpu_kernel_cache_file", TIMED])
def test_a_file_of_kernels_on_a_gpu_is_warned_of(monkeypatch, tmp_path, platform, chosen):
    settings = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_enable_compilation_cache": True,
        "jax_persistent_cache_enable_xla_caches": chosen,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            assert program_cache.keep_programs.__wrapped__() is None  # the folder is JAX's
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
    texts = [str(one.message) for one in found]
    assert len(texts) == (platform == "gpu" and chosen != TIMED)
    assert all(f"XLA_CACHES is '{chosen}'" in text and TIMED in text for text in texts)


def test_one_option_turns_it_off(show, tmp_path):
    assert show(JAXSPEC_COMPILE_CACHE="0")[:2] == [None, 1.0]
    assert not (tmp_path / "programs").exists()


@pytest.mark.slow
def test_jaxs_own_settings_come_first(show, tmp_path):
    other = str(tmp_path / "other")
    assert show(JAX_COMPILATION_CACHE_DIR=other)[:2] == [other, 1.0]
    assert show(f"jax.config.update('jax_compilation_cache_dir', {other!r})")[:2] == [other, 1.0]
    assert show(JAX_ENABLE_COMPILATION_CACHE="0")[0] is None
    kept = show(JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="2.5")
    assert kept[:3] == [str(tmp_path / "programs"), 2.5, TIMED]


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="folders have no owners here")
def test_a_folder_that_others_can_write_is_not_used(tmp_path):
    folder = tmp_path / "programs"
    folder.mkdir(mode=0o700)
    assert program_cache.is_private(folder)
    for open_one in (folder, tmp_path):
        open_one.chmod(0o777)
        assert not program_cache.is_private(folder)
        open_one.chmod(0o700)


def test_programs_of_a_killed_process_are_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_MAX_SIZE", raising=False)
    monkeypatch.setattr(jax.config, "update", lambda name, value: None)
    monkeypatch.setattr(type(jax.config), "jax_compilation_cache_dir", None)
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("whole-cache", "whole-atime", "torn-cache"):
        (folder / name).write_bytes(b"12345678")
    assert program_cache.keep_programs.__wrapped__() == folder
    assert sorted(path.name for path in folder.glob("*-*")) == ["whole-atime", "whole-cache"]
