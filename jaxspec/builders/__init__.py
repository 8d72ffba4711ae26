"""Tree builders: turn ranked candidates per depth into a tree to verify.

A builder is a value. Make it by a call or write it as a string:

    jaxspec.Speculation(builder=jaxspec.builders.expand(width=3, fanout="top2gap"))
    jaxspec.Speculation(builder="expand/w3/fanout=top2gap")

`protocol` says what a builder is; `register` makes one of your own known by name.
"""

from __future__ import annotations

from jaxspec.builders.candidates import rank
from jaxspec.builders.fanout import Fanout, make_fanout
from jaxspec.builders.growth import Growth, Proposes, StepCandidates, grow_at_once
from jaxspec.builders.parse import (
    list_names,
    make_builder,
    parse_builder,
    register,
    unregister,
)
from jaxspec.builders.protocol import Builder, Unsuitable
from jaxspec.builders.trees.beam import beam
from jaxspec.builders.trees.best_first import best_first
from jaxspec.builders.trees.chain import chain
from jaxspec.builders.trees.dynamic import dynamic
from jaxspec.builders.trees.expand import expand
from jaxspec.builders.trees.lattice import lattice
from jaxspec.builders.trees.rank_guided import rank_guided
from jaxspec.builders.trees.static import static

__all__ = [
    "Builder",
    "Fanout",
    "Growth",
    "Proposes",
    "StepCandidates",
    "Unsuitable",
    "beam",
    "best_first",
    "chain",
    "dynamic",
    "expand",
    "grow_at_once",
    "lattice",
    "list_names",
    "make_builder",
    "make_fanout",
    "parse_builder",
    "rank",
    "rank_guided",
    "register",
    "static",
    "unregister",
]

register("chain", chain)
register("best_first", best_first)
register("expand", expand)
register("beam", beam)
register("static", static)
register("dynamic", dynamic)
register("lattice", lattice)
register("rank_guided", rank_guided)
