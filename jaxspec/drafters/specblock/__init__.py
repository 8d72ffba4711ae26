"""SpecBlock."""
