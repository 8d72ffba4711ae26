"""Measurements of decoding, and the `jaxspec bench` commands.

- `measure`: prompt files, methods, timed decodes that take turns, timed phases of a round;
- `report`: figures and intervals, one table renderer, Markdown, other tools' formats;
- `latency`, `sweep`, `policies`, `peers`: one folder for each subcommand;
- here: the whole benchmark, the demonstration, named architectures, and calibration.
"""
