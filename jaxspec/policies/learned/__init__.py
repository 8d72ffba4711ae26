"""Policies with trained weights: BlockPilot, C2T, Disco, SpecDec++, LTD and regressions."""
