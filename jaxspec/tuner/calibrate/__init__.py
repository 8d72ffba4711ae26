"""Measures what rounds cost on a device, or computes it by the roofline, and keeps the tables."""
