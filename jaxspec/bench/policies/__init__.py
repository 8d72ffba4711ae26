"""`jaxspec bench policies`: policies compared on the same prompts by three clocks."""
