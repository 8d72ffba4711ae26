"""Commands about checkpoints."""

from jaxspec.cli.checkpoints import convert, doctor, inspect

COMMANDS = (inspect, convert, doctor)
