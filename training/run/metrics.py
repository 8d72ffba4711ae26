"""Progress of a run: metrics.jsonl, TensorBoard scalars and the progress bar."""

from __future__ import annotations

import json
import time
from pathlib import Path

import jax
import numpy as np
from tqdm import tqdm

from jaxspec.io.files.atomic import write_text


def count_tokens(batch) -> int:
    """Count the tokens of a batch.

    These are the tokens in documents (`segments` > 0) if the batch has segments, else the elements
    of `tokens` or of an array.
    """
    if isinstance(batch, dict):
        if "segments" in batch:
            return int(np.count_nonzero(batch["segments"]))
        return int(batch["tokens"].size) if "tokens" in batch else 0
    return sum(
        int(leaf.size) for leaf in jax.tree.leaves(batch) if np.issubdtype(leaf.dtype, np.integer)
    )


def read_metrics(path: Path) -> list[dict]:
    """Read the lines of metrics.jsonl, without an unfinished last line of a killed process."""
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


class RunLog:
    """Appends {"step", "seconds", metrics} to metrics.jsonl and TensorBoard, and draws the bar.

    A resumed run drops what the killed one wrote after its checkpoint: it removes lines from the
    file, and makes TensorBoard forget those steps. Only the first process writes.

    Args:
      run: folder of the run.
      first: steps done before.
      total: steps planned.
    """

    def __init__(self, run: Path, first: int, total: int):
        self.path = run / "metrics.jsonl"
        self.start = time.monotonic()
        self.writes = jax.process_index() == 0
        kept = (
            [record for record in read_metrics(self.path) if record["step"] <= first]
            if self.writes
            else []
        )
        self.seconds = max((record["seconds"] for record in kept), default=0.0)
        self.tokens = max((record.get("tokens", 0) for record in kept), default=0)
        self.pace = (self.tokens, self.start)
        self.bar = tqdm(
            initial=first, total=total, mininterval=2.0, desc=run.name, disable=not self.writes
        )
        if self.writes:
            run.mkdir(parents=True, exist_ok=True)
            # Whole or not at all: a full disk must not cost the earlier lines.
            write_text(self.path, "".join(json.dumps(record) + "\n" for record in kept))
            self.board = _Board(run / "tensorboard", first + 1)

    def advance(self, tokens: int) -> None:
        """Count one more step, on `tokens` tokens."""
        self.tokens += tokens
        self.bar.update()

    def training(self, step: int, metrics: dict[str, float]) -> None:
        """Write a step's metrics, and tokens per second since the last call of this or `rest`."""
        tokens, since = self.pace
        rate = (self.tokens - tokens) / max(time.monotonic() - since, 1e-9)
        speed = {"tokens": self.tokens, "tokens_per_second": round(rate, 1)} if self.tokens else {}
        shown = {name: f"{metrics[name]:.3f}" for name in ("loss",) if name in metrics}
        self.bar.set_postfix(shown | ({"tokens/s": f"{rate:.0f}"} if speed else {}), refresh=False)
        self._write(step, metrics, speed)
        self.rest()

    def evaluation(self, step: int, metrics: dict[str, float]) -> None:
        """Write the metrics of an evaluation, and print them above the bar."""
        rounded = self._write(step, metrics, {})
        if self.writes:
            tqdm.write(f"step {step}: {rounded}")

    def rest(self) -> None:
        """Restart the clock: the time of an evaluation or a checkpoint is not training time."""
        self.pace = (self.tokens, time.monotonic())

    def _write(
        self, step: int, metrics: dict[str, float], more: dict[str, float]
    ) -> dict[str, float]:
        metrics = {name: round(float(value), 5) for name, value in metrics.items()}
        if self.writes:
            seconds = round(self.seconds + time.monotonic() - self.start, 1)
            with self.path.open("a") as file:
                file.write(json.dumps({"step": step, "seconds": seconds, **metrics, **more}) + "\n")
            self.board.write(step, metrics | more)
        return metrics

    def close(self) -> None:
        """Close the files and the bar."""
        self.bar.close()
        if self.writes:
            self.board.close()


class _Board:
    """TensorBoard scalars, written in the caller's thread.

    The queue of `SummaryWriter` would block for ever on a full disk.
    """

    def __init__(self, folder: Path, purge_step: int):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        folder.mkdir(parents=True, exist_ok=True)
        self.writer, self.event = EventsWriter(str(folder / "events"), f".{time.time_ns()}"), Event
        version = Event(wall_time=time.time(), step=purge_step, file_version="brain.Event:2")
        forget = Event(
            wall_time=time.time(), step=purge_step, session_log=SessionLog(status=SessionLog.START)
        )
        for event in (version, forget):
            self.writer.write_event(event)

    def write(self, step: int, scalars: dict[str, float]) -> None:
        from tensorboardX.summary import scalar

        for name, value in scalars.items():
            self.writer.write_event(
                self.event(wall_time=time.time(), step=step, summary=scalar(name, value))
            )
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
