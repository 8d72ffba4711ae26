"""Target models: one transformer for all families, and a record for each family.

`register` adds a family of your own; `docs/architecture.md` shows how.
"""

from jaxspec.targets.families.family import TargetFamily
from jaxspec.targets.families.registry import families, family_of, named, register, unregister

__all__ = ["TargetFamily", "families", "family_of", "named", "register", "unregister"]
