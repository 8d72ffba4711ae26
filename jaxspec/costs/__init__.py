"""Costs of a round: measured tables and the roofline of a device."""
