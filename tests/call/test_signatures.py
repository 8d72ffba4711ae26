"""`decode`, `stream` and `prepare` spell out the same options, with the same defaults and types."""

import inspect

import pytest

import jaxspec
from jaxspec.call.resolve import resolve_config
from jaxspec.call.session import prepare


def options_of(function) -> dict[str, tuple]:
    """{keyword: (default, annotation)}."""
    found = inspect.signature(function).parameters.values()
    return {p.name: (p.default, p.annotation) for p in found if p.kind is p.KEYWORD_ONLY}


def test_decode_and_stream_take_the_same_options():
    decode = options_of(jaxspec.decode)
    assert [decode.pop(own)[0] for own in ("trace", "shrink")] == [False, None]
    assert decode == options_of(jaxspec.stream)
    assert decode.pop("tuner")[0] is None
    assert decode == options_of(prepare)


def test_what_is_compiled_takes_a_part_of_them():
    common, own = options_of(prepare), options_of(resolve_config)
    assert own.items() <= common.items()


@pytest.mark.parametrize("function", [jaxspec.decode, jaxspec.stream, prepare, resolve_config])
def test_every_option_is_named_and_typed(function):
    parameters = inspect.signature(function).parameters.values()
    assert all(p.kind is not p.VAR_KEYWORD and p.annotation is not p.empty for p in parameters)
