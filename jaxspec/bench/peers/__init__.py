"""`jaxspec bench peers`: our decoding against transformers' in PyTorch."""
