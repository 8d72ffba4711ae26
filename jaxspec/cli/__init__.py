"""The `jaxspec` command, one module per subcommand."""
