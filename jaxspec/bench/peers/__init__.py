"""`jaxspec bench peers`: compare our decoding with transformers in PyTorch and with llama.cpp."""
