"""JetSpec's causal parallel head: DFlash's network with slots that see only earlier slots."""

import dataclasses

from jaxspec.drafters.dflash import DFLASH
from jaxspec.drafters.dflash.files import block_format

# The default method if it is loaded: it accepts more than DFlash at the same cost.
JETSPEC = dataclasses.replace(
    DFLASH,
    name="jetspec",
    owns=lambda config: config.causal,
    files=block_format(causal=True, names=("dflash", "jetspec")),
    preference=0,
    causal_slots=True,
    page="jetspec/README.md",
)
