"""`jaxspec bench latency`: pieces of a round against the floors of the same device."""
