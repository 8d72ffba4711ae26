"""Measurements that users run: `jaxspec bench`, `check`, `aot`, `plan` and `demo`.

- `measure`: methods, timed decodes that take turns, timed phases of a round;
- `report`: figures and intervals, one table renderer, Markdown, other tools' formats;
- `latency`, `peers`, `serve`, `endpoint`, `check`, `aot`, `loading`: a folder for each measurement;
- here: the whole benchmark, the demonstration, named architectures.

Studies are in the folder `benchmarks/` of the repository.
"""
