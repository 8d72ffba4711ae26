"""The families that ship, one idea of layers a file."""
