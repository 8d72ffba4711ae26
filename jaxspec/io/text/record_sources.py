"""Read records from where they are published: JSON files, Parquet files and the Hugging Face hub."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxspec.core.runtime import distribution
from jaxspec.io.text.json_records import read_objects
from jaxspec.io.text.messages import replace_surrogates


def read_records(source: str | os.PathLike) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the records of a source, each after its place for error messages.

    Args:
      source: a .parquet file, another file (see `jaxspec.io.text.json_records`), or the name of a
        data set on the Hugging Face hub, `hub:OWNER/NAME[/CONFIG][:SPLIT]`. The split is `test` if
        none is named.
    """
    if is_hub_name(source):
        return _read_hub(str(source))
    path = Path(source)
    return _read_parquet(path) if path.suffix == ".parquet" else read_objects(path)


def is_hub_name(source: str | os.PathLike) -> bool:
    """Whether a source is the name of a data set on the hub."""
    return isinstance(source, str) and source.startswith("hub:")


def name_source(source: str | os.PathLike) -> str:
    """Return the domain of records that name none: the file's or the data set's name."""
    if is_hub_name(source):
        return _split_name(str(source))[0].partition("/")[2]
    return Path(source).name.split(".")[0]


def check_hub_name(source: str) -> str:
    """Check the name of a data set: a ValueError, or an ImportError without the extra `data`."""
    _split_name(source)
    distribution.require("data", "datasets")
    return source


def _split_name(source: str) -> tuple[str, str | None, str]:
    """Split a name into the data set's, its configuration's and its split's."""
    name, _, split = source.removeprefix("hub:").partition(":")
    parts = name.split("/", 2)
    if len(parts) < 2 or not all(parts):
        raise ValueError(f"{source!r} names no data set: write hub:OWNER/NAME[/CONFIG][:SPLIT]")
    return "/".join(parts[:2]), parts[2] if len(parts) > 2 else None, split or "test"


def _read_hub(source: str) -> Iterator[tuple[str, dict[str, Any]]]:
    check_hub_name(source)
    import datasets

    name, config, split = _split_name(source)
    try:
        rows = datasets.load_dataset(name, config, split=split)
    except Exception as error:  # the library's own kinds, the network's and the files'
        reason = " ".join(str(error).split())
        raise ValueError(f"{source} cannot be read ({reason}): name another one") from None
    for number, row in enumerate(rows, 1):
        yield f"{source}, record {number}", replace_surrogates(dict(row))


def _read_parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    path.stat()  # a missing file is told before a missing library
    distribution.require("data", "pyarrow")
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            rows = (row for batch in file.iter_batches(1024) for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                yield f"{path}, record {number}", row
    except pyarrow.ArrowException as error:
        reason = " ".join(str(error).split())
        place = f"{path}, after record {number}"
        raise ValueError(f"{place}: this is no Parquet file that can be read ({reason})") from None
