"""`jaxspec bench policies`: compare policies on the same prompts by three kinds of time."""
