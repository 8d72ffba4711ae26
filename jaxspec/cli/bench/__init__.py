"""`jaxspec bench` and its subcommands."""
