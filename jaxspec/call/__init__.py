"""One call from prompts to sequences: session, prefill, the round and its phases, and the loop
around it.
"""
