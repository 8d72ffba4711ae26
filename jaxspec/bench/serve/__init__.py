"""Measure the serving engine without HTTP: rules of sharing rows, and its overhead."""
