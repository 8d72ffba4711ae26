"""What `jaxspec inspect`, `convert` and `doctor` do, as functions: `describe`, `convert`, `diagnose`."""

from jaxspec.tools.convert import convert
from jaxspec.tools.doctor import diagnose
from jaxspec.tools.inspect import describe

__all__ = ["convert", "describe", "diagnose"]
