"""The `jaxspec` command: one module per subcommand, each with `add_command` and `run`."""
