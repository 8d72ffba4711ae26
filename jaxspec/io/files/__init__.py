"""Files of arrays, as they lie on disk."""
