"""What a round costs: measured tables and the roofline of a device."""
