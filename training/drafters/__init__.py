"""Drafters to train: one place and one record each. The rest of training knows a drafter by it.

`register` adds your own drafter, which `jaxspec.drafters.register` must know too.
"""

from .presets import DrafterPreset
from .record import Backbone, TrainingRecord
from .registry import list_presets, make_options, named, records, register, unregister

__all__ = [
    "Backbone",
    "DrafterPreset",
    "TrainingRecord",
    "list_presets",
    "make_options",
    "named",
    "records",
    "register",
    "unregister",
]
