"""The tuner: all that times, probes, remembers and chooses what callers left open.

`jaxspec.tuner.tuner.Tuner` is its one object. `jaxspec.call` runs without it.
"""
