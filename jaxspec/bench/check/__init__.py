"""`jaxspec check`: prove that jaxspec works on this device, and measure how fast."""
