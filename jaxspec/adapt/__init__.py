"""Drafters that learn while they serve (SpecBlock, section 3.4; online speculative decoding)."""
