"""Products and searches alone: which of several ways is fastest on this device."""
