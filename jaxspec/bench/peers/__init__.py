"""`jaxspec bench peers`: our loop next to transformers'."""
