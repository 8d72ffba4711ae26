"""Block drafters: DFlash, and JetSpec's causal head."""
