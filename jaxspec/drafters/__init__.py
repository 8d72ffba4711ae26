"""Drafters: one folder and one record each. The rest of the library knows a drafter by its record.

`register` adds your own drafter; `docs/architecture.md` shows how.
"""

from jaxspec.core.config import DrafterConfig
from jaxspec.drafters.base import Committed, Drafter, Proposal, TargetHead
from jaxspec.drafters.format import Format, simple_format
from jaxspec.drafters.record import DrafterRecord
from jaxspec.drafters.registry import named, record_of, records, register, unregister

__all__ = [
    "Committed",
    "Drafter",
    "DrafterConfig",
    "DrafterRecord",
    "Format",
    "Proposal",
    "TargetHead",
    "named",
    "record_of",
    "records",
    "register",
    "simple_format",
    "unregister",
]
