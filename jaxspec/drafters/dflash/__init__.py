"""DFlash: a block of tokens in one forward, each slot seeing the whole block."""

from jaxspec.drafters.dflash.drafter import make_block_drafter, resize, rewind
from jaxspec.drafters.dflash.files import block_format
from jaxspec.drafters.dflash.network import BlockDrafterConfig
from jaxspec.drafters.record import DrafterRecord

DFLASH = DrafterRecord(
    name="dflash",
    config=BlockDrafterConfig,
    make=make_block_drafter,
    owns=lambda config: not config.causal,
    compared=("chain", "best_first", "expand"),
    further=("beam", "static", "dynamic"),
    default_builder="best_first",
    files=block_format(causal=False),
    preference=1,
    resize=resize,
    blocks=True,
    rewind=rewind,
    page="dflash/README.md",
    peer_method="expand@8/w2",
)
