"""The serving engine: full engines, modelled batches, batches that shrink."""
