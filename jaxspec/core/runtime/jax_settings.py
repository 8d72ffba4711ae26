"""Settings of JAX's own that the programs here are written for.

A user may have others for other code, in `jax.config` or in JAX's environment variables: 64-bit
numbers, checks of ranks, dtypes and NaNs, another generator. They hold there, and not within a
call: its text and its dtypes are the same under all of them.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import jax
import jax.experimental

F = TypeVar("F", bound=Callable[..., Any])


class Setting(NamedTuple):
    """How a setting is made for a call.

    Attributes:
      context: value -> context with this value.
      wanted: the value.
      also: other values that are left as they are.
    """

    context: Callable[[Any], contextlib.AbstractContextManager[Any]]
    wanted: Any
    also: tuple[Any, ...] = ()


# jax.experimental.enable_x64 has moved.
_enable_x64: Any = getattr(jax if hasattr(jax, "enable_x64") else jax.experimental, "enable_x64")  # noqa: B009
SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        "jax_enable_x64": Setting(_enable_x64, False),
        "jax_numpy_rank_promotion": Setting(jax.numpy_rank_promotion, "allow", ("warn",)),
        "jax_numpy_dtype_promotion": Setting(jax.numpy_dtype_promotion, "standard"),
        # Masks are infinite, and rows that nobody reads may hold anything.
        "jax_debug_nans": Setting(jax.debug_nans, False),
        "jax_debug_infs": Setting(jax.debug_infs, False),
        # Without compilation a round takes minutes.
        "jax_disable_jit": Setting(jax.disable_jit, False),
        "jax_transfer_guard": Setting(jax.transfer_guard, "allow", (None, "log", "log_explicit")),
        "jax_threefry_partitionable": Setting(jax.threefry_partitionable, True),
        "jax_default_prng_impl": Setting(jax.default_prng_impl, "threefry2x32"),
        "jax_legacy_prng_key": Setting(jax.legacy_prng_key, "allow", ("warn",)),
    }
)


def find_changed() -> dict[str, Setting]:
    """Return the settings that must be made, because others hold now."""
    return {
        name: one
        for name, one in SETTINGS.items()
        if (found := getattr(jax.config, name, one.wanted)) != one.wanted and found not in one.also
    }


def check_platforms() -> None:
    """Refuse to go on without a device.

    Raises:
      ValueError: JAX has none of the platforms that its settings name, or cannot start one.
    """
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # JAX has no better one for a missing plugin
        named = getattr(jax.config, "jax_platforms", None)
        why = f"JAX_PLATFORMS is {named!r}" if named else str(error).partition("\n")[0]
        raise ValueError(
            f"JAX finds no device to run on ({why}): set JAX_PLATFORMS=cpu, or unset it"
        ) from None


@contextlib.contextmanager
def own_settings() -> Iterator[None]:
    """Make the settings for the body, in this thread. It costs nothing where they hold already."""
    with contextlib.ExitStack() as stack:
        for one in find_changed().values():
            stack.enter_context(one.context(one.wanted))
        yield


@contextlib.contextmanager
def own_process() -> Iterator[None]:
    """Make the settings for the body, in all threads: for commands."""
    before = {name: getattr(jax.config, name) for name in find_changed()}
    for name in before:
        jax.config.update(name, SETTINGS[name].wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def under_own_settings(function: F) -> F:
    """Let a function run under `own_settings`, each step of a generator for itself."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        with own_settings():
            found = function(*args, **options)
        return _step(found) if inspect.isgenerator(found) else found

    return call  # type: ignore[return-value]


def _step(steps: Any) -> Iterator[Any]:
    """Run a generator under `own_settings`; between its steps, the caller's hold."""
    with contextlib.closing(steps):
        while True:
            with own_settings():
                try:
                    value = next(steps)
                except StopIteration as ended:
                    return ended.value
            yield value
